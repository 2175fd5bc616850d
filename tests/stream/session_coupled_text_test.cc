// Speculation in coupled mode: the text equals that without speculation, for any drafts.

#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/stream/random_samplers.h"
#include "tests/support/judged_rows.h"
#include "tests/support/scale.h"

namespace sortition::service::session_coupled_text_test {
namespace {

class SessionCoupledText : public ::testing::Test {
 protected:
  static v1::OpenSequence OpenNumber(uint32_t number, std::mt19937_64* random) {
    v1::OpenSequence open = MakeOpen(absl::StrCat("s", number), 1, kModelVocabulary);
    open.set_seed((*random)());
    v1::SamplingParameters& parameters = *open.mutable_parameters();
    parameters.set_temperature(0.5f + float((*random)() % 100) / 100);
    if ((*random)() % 2 == 0) parameters.set_top_k(4 + static_cast<uint32_t>((*random)() % 20));
    if ((*random)() % 4 != 0) parameters.set_presence_penalty(0.75f);
    if ((*random)() % 4 == 0) parameters.set_repetition_penalty(1.2f);
    if ((*random)() % 4 == 0) parameters.mutable_processed_logprobs()->set_top(3);
    if ((*random)() % 8 == 0) parameters.set_entropy(true);
    if ((*random)() % 2 == 0) SetSamplers(random, &parameters);
    if ((*random)() % 4 == 0) {
      parameters.mutable_dry()->set_multiplier(0.5f);
      parameters.mutable_dry()->set_allowed_length(1);
    }
    if ((*random)() % 8 == 0) parameters.set_no_repeat_ngram_size(2);
    if ((*random)() % 8 == 0) {
      parameters.add_logit_bias()->set_token(3);
      parameters.mutable_logit_bias(0)->set_bias(1.5f);
    }
    if ((*random)() % 3 == 0) AddPhases(random, &parameters);
    if (IsStateful(open)) {
      for (uint32_t i = (*random)() % 5; i > 0; --i) {
        open.mutable_history()->add_tokens(static_cast<uint32_t>((*random)() % kModelVocabulary));
      }
      open.mutable_history()->set_prompt_length(static_cast<uint32_t>(open.history().tokens_size()));
    }
    return open;
  }
  // Adds a phase that begins with the output and one with tags, whose parameters differ from the sequence's.
  static void AddPhases(std::mt19937_64* random, v1::SamplingParameters* parameters) {
    const auto token = [&] { return static_cast<uint32_t>((*random)() % kModelVocabulary); };
    v1::Phase& first = *parameters->add_phases();
    first.set_max_tokens((*random)() % 6);
    for (uint64_t i = 1 + (*random)() % 3; i > 0; --i) first.add_then(token());
    first.mutable_parameters()->set_temperature(0.4f);
    first.mutable_parameters()->set_frequency_penalty(0.5f);
    v1::Phase& second = *parameters->add_phases();
    second.add_begin(first.then(first.then_size() - 1) == 3 ? 4 : 3);
    second.add_end(token());
    if ((*random)() % 2 == 0) second.set_max_tokens((*random)() % 4);
    second.mutable_parameters()->set_top_k(5);
    second.mutable_parameters()->add_banned_token_ids(token());
    AddBias(token(), 2, second.mutable_parameters());
  }
  static bool IsStateful(const v1::OpenSequence& open) {
    const v1::SamplingParameters& parameters = open.parameters();
    return parameters.has_presence_penalty() || parameters.has_repetition_penalty() || parameters.has_dry() ||
           parameters.has_no_repeat_ngram_size() || parameters.phases_size() > 0;
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
};

// 10,000 sequences, with cuts between their steps.
TEST_F(SessionCoupledText, EqualsTextWithoutSpeculation) {
  constexpr uint32_t kAtOnce = 50;
  std::mt19937_64 random(81);
  uint64_t accepted = 0;
  uint64_t drafted = 0;
  uint64_t in_phases = 0, changes_of_phase = 0;
  uint64_t batch_id = 0;
  for (uint64_t group = testing::Scaled(10'000 / kAtOnce); group > 0; --group) {
    std::vector<Writer> writers;
    std::vector<v1::OpenSequence> opens;
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      opens.push_back(OpenNumber(static_cast<uint32_t>(group * kAtOnce + i), &random));
      worker_.MustOpen(opens.back());
      Writer& writer = writers.emplace_back(opens.back(), group * kAtOnce + i);
      writer.server_position = static_cast<uint32_t>(writer.text.size());
    }
    for (int round = 0; round < 3; ++round) {
      StepBuilder step(++batch_id, kModelVocabulary);
      std::vector<std::vector<v1::DrawResult>> right;
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        Writer& writer = writers[i];
        std::optional<uint32_t> truncate_to;
        if (writer.text.size() > 2 && random() % 4 == 0) {
          truncate_to = static_cast<uint32_t>(writer.text.size() - 1 - random() % 2);
          writer.TruncateTo(*truncate_to);
        }
        v1::StepRow& row = step.AddRow(opens[i].request_id(), ++writer.step_id,
                                       static_cast<uint32_t>(writer.text.size()), writer.LogitsOf({}));
        if (IsStateful(opens[i])) {
          row.set_history_hash(writer.plain.hash());
          if (truncate_to) row.set_truncate_to(*truncate_to);
        }
        v1::VerifyDraft& chain = *row.mutable_verify_draft();
        chain.set_mode(v1::VERIFY_MODE_COUPLED);
        // Drafts, most of them right. A wrong one has further drafts too.
        std::vector<uint32_t> ahead;
        std::vector<v1::DrawResult>& expected = right.emplace_back();
        expected.push_back(writer.Right({}));
        bool holds = true;
        for (uint32_t k = 1 + static_cast<uint32_t>(random() % 5); k > 0; --k) {
          const uint32_t guess =
              random() % 4 != 0 && holds ? expected.back().token() : static_cast<uint32_t>(random() % kModelVocabulary);
          chain.add_draft_tokens(guess);
          holds = holds && guess == expected.back().token();
          ahead.push_back(guess);
          step.AddTensorRow(writer.LogitsOf(ahead));
          if (holds) expected.push_back(writer.Right(ahead));
        }
      }
      const std::vector<v1::RowResult> results = worker_.Run(step.Build());
      ASSERT_EQ(results.size(), kAtOnce);
      worker_.LetLeave();
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        ASSERT_TRUE(results[i].has_verify()) << results[i].ShortDebugString();
        const v1::VerifyResult& verify = results[i].verify();
        ASSERT_EQ(static_cast<size_t>(verify.positions_size()), right[i].size()) << verify.ShortDebugString();
        ASSERT_EQ(verify.accepted() + 1, right[i].size());
        for (size_t k = 0; k < right[i].size(); ++k) {
          const int at = static_cast<int>(k);
          ASSERT_EQ(verify.positions(at).token(), right[i][k].token());
          ASSERT_EQ(verify.positions(at).phase(), right[i][k].phase());
          in_phases += right[i][k].phase() != 0;
          changes_of_phase += k > 0 && right[i][k].phase() != right[i][k - 1].phase();
          if (right[i][k].has_processed()) {
            ASSERT_EQ(verify.positions(at).processed().SerializeAsString(),
                      right[i][k].processed().SerializeAsString());
          }
          if (right[i][k].has_entropy()) {
            ASSERT_EQ(verify.positions(at).entropy(), right[i][k].entropy());
          }
          writers[i].Append(verify.positions(at).token());
        }
        accepted += verify.accepted();
        drafted += static_cast<uint64_t>(verify.position_matched_size());
        ASSERT_EQ(verify.has_history_hash(), IsStateful(opens[i]));
        if (IsStateful(opens[i])) {
          ASSERT_EQ(verify.history_hash(), writers[i].plain.hash());
        }
      }
    }
    for (const v1::OpenSequence& open : opens) worker_.Send(testing::MakeClose(open.request_id(), 1));
  }
  EXPECT_GT(accepted * 10, drafted * 4);
  EXPECT_LT(accepted * 10, drafted * 9);
  EXPECT_GT(in_phases, testing::Scaled(1000));
  EXPECT_GT(changes_of_phase, testing::Scaled(200));
}

}  // namespace
}  // namespace sortition::service::session_coupled_text_test
