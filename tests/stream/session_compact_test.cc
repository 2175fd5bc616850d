// Compact rows on a stream: the answer of the whole row in every bit, or ROW_REQUIRED, after which the same step is
// sent again.

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/stream/compact_fixture.h"
#include "tests/stream/random_samplers.h"
#include "tests/support/scale.h"

namespace sortition::service::session_compact_test {
namespace {

using Random = std::mt19937_64;

constexpr uint32_t kSmall = 60;
constexpr uint32_t kLarge = 1500;  // more tokens than a refusal names

uint32_t Pick(Random* random, uint32_t end) { return static_cast<uint32_t>((*random)() % end); }
bool OneIn(Random* random, uint32_t n) { return Pick(random, n) == 0; }

std::vector<uint32_t> SomeTokens(Random* random, uint32_t vocabulary, uint32_t count) {
  std::set<uint32_t> tokens;
  while (tokens.size() < std::min(count, vocabulary)) tokens.insert(Pick(random, vocabulary));
  return {tokens.begin(), tokens.end()};
}

void SetAsked(Random* random, uint32_t vocabulary, v1::SamplingParameters* p) {
  if (OneIn(random, 3)) p->mutable_raw_logprobs()->set_top(Pick(random, 4));
  if (OneIn(random, 3)) p->mutable_processed_logprobs()->set_top(Pick(random, 4));
  if (OneIn(random, 5)) p->mutable_tempered_logprobs()->set_top(Pick(random, 4));
  if (OneIn(random, 6)) p->set_kept_log_mass(true);
  if ((p->has_raw_logprobs() || p->has_processed_logprobs()) && OneIn(random, 3)) {
    for (const uint32_t token : SomeTokens(random, vocabulary, 3)) p->add_logprob_token_ids(token);
  }
  if (OneIn(random, 6)) p->set_entropy(true);
  if (OneIn(random, 6)) p->mutable_kept_set()->set_count(true);
  if (OneIn(random, 6)) p->mutable_kept_set()->set_tokens(true);
}

v1::OpenSequence RandomOpen(Random* random, uint64_t number, uint32_t vocabulary) {
  v1::OpenSequence open = MakeOpen(absl::StrCat("s", number), 1, vocabulary);
  open.set_seed(number);
  if (OneIn(random, 4)) open.set_live_vocabulary_size(vocabulary - 7);
  const uint32_t live = open.has_live_vocabulary_size() ? open.live_vocabulary_size() : vocabulary;
  v1::SamplingParameters& p = *open.mutable_parameters();
  if (OneIn(random, 2)) {
    SetSamplers(random, &p);
  } else {
    p.set_temperature(OneIn(random, 6) ? 0.0f : 0.8f);
    if (!OneIn(random, 3)) p.set_top_k(1 + Pick(random, 50));
    if (!OneIn(random, 3)) p.set_top_p(0.95f);
    if (!OneIn(random, 3)) p.set_min_p(0.05f);
    if (p.temperature() != 0 && OneIn(random, 6)) p.mutable_adaptive_p()->set_target(0.2f);
    if (p.temperature() != 0 && !p.has_adaptive_p() && OneIn(random, 6)) p.mutable_mirostat()->set_version(2);
  }
  SetAsked(random, live, &p);
  for (const uint32_t token : SomeTokens(random, live, Pick(random, 3))) {
    AddBias(token, OneIn(random, 2) ? -1.5f : 1.5f, &p);
  }
  if (OneIn(random, 6)) {
    for (const uint32_t token : SomeTokens(random, live, 30)) p.add_allowed_token_ids(token);
  }
  if (OneIn(random, 2)) p.set_repetition_penalty(OneIn(random, 6) ? 0.8f : 1.2f);
  if (OneIn(random, 3)) p.set_presence_penalty(OneIn(random, 6) ? -0.5f : 0.5f);
  if (p.has_repetition_penalty() || p.has_presence_penalty()) {
    for (uint32_t i = 0; i < 5; ++i) open.mutable_history()->add_tokens(Pick(random, live));
    open.mutable_history()->set_prompt_length(5);
  }
  return open;
}

// One sequence, on a stream that sends whole rows and on one that sends compact rows.
struct Text {
  v1::OpenSequence open;
  PlainSequence plain;
  uint64_t step_id = 0;
  std::string whole_checkpoint;
  std::string compact_checkpoint;

  explicit Text(const v1::OpenSequence& its_open) : open(its_open), plain(its_open) {}
  bool stateful() const { return open.has_history(); }
  uint32_t live() const {
    return open.has_live_vocabulary_size() ? open.live_vocabulary_size() : open.vocabulary_size();
  }
};

// Two tenants of one engine: `whole_` is what `compact_` is compared with.
class SessionCompact : public CompactFixture {
 protected:
  // Adds a row with a random task to the step.
  void AddRow(Random* random, Text* text, kernels::DType dtype, StepBuilder* step) {
    const uint32_t vocabulary = text->open.vocabulary_size();
    const auto logits = [&] { return RandomLogits(dtype, vocabulary, random); };
    v1::StepRow& row = step->AddRow(text->open.request_id(), ++text->step_id, text->plain.position(), logits());
    if (text->stateful()) row.set_history_hash(text->plain.hash());
    const uint32_t drafts = 1 + Pick(random, 3);
    const uint32_t task = Pick(random, 6);
    const bool is_greedy = text->open.parameters().has_temperature() && text->open.parameters().temperature() == 0;
    const auto mode = is_greedy          ? v1::VERIFY_MODE_GREEDY
                      : OneIn(random, 2) ? v1::VERIFY_MODE_COUPLED
                                         : v1::VERIFY_MODE_REJECTION;
    uint32_t positions = 1;
    if (task == 0) {
      for (uint32_t i = 0; i <= drafts; ++i) row.mutable_score()->add_tokens(Pick(random, text->live()));
      positions = drafts + 1;
    } else if (task == 1) {
      v1::VerifyDraft& draft = *row.mutable_verify_draft();
      draft.set_mode(mode);
      draft.set_return_probabilities(OneIn(random, 3));
      const bool is_dense = mode == v1::VERIFY_MODE_REJECTION && OneIn(random, 2);
      const bool keeps_state = text->open.parameters().has_mirostat() || text->open.parameters().has_adaptive_p();
      if (is_dense && !keeps_state && OneIn(random, 2)) draft.set_mode(v1::VERIFY_MODE_BLOCK);
      for (uint32_t i = 0; i < drafts; ++i) {
        draft.add_draft_tokens(Pick(random, text->live()));
        if (!is_dense) continue;
        const float q = 1.0f / static_cast<float>(text->live());
        const uint32_t at = step->AddDraftRow(std::vector<float>(vocabulary, q));
        if (i == 0) draft.set_draft_row(at);
      }
      positions = drafts + 1;
    } else if (task == 2) {
      v1::VerifyTree& tree = *row.mutable_verify_tree();
      tree.set_mode(mode);
      for (uint32_t i = 0; i < drafts; ++i) {
        tree.add_draft_tokens(i);
        tree.add_parents(static_cast<int32_t>(Pick(random, i + 1)) - 1);
      }
      positions = drafts + 1;
    }
    for (uint32_t i = 1; i < positions; ++i) step->AddTensorRow(logits());
    if (OneIn(random, 4)) {
      std::vector<bool> allowed(vocabulary);
      for (uint32_t id = 0; id < vocabulary; ++id) allowed[id] = !OneIn(random, 3);
      row.mutable_mask()->set_mask_row(step->AddMask(allowed));
    } else if (OneIn(random, 6)) {
      for (const uint32_t token : SomeTokens(random, text->live(), 10)) {
        row.mutable_mask()->mutable_allowed_tokens()->add_tokens(token);
      }
    }
  }

  // Sends a step of one row with compact rows until it is decided, as a client does.
  v1::RowResult Decide(Random* random, const v1::StreamRequest& step, const Text& text) {
    CompactChoice choice{PlainRowParameters(text.open.parameters()), text.live()};
    choice.count = 1 + Pick(random, OneIn(random, 4) ? text.live() + 2 : 60);
    choice.unit_sum = OneIn(random, 2);
    choice.sum = OneIn(random, 2);
    v1::StreamRequest message = step;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const std::optional<CompactChoice> choices[] = {choice};
      // A whole row is the last word.
      message = attempt == 2 ? step : WithCompactRows(step, choices);
      message.mutable_step()->set_batch_id(++batch_);
      message.mutable_step()->mutable_rows(0)->set_checkpoint(text.compact_checkpoint);
      const std::vector<v1::RowResult> results = compact_.Run(message);
      compact_.LetLeave();
      if (results.size() != 1) return {};
      if (results[0].error().reason() != v1::ROW_REQUIRED) {
        ++decided_[attempt];
        return results[0];
      }
      EXPECT_EQ(results[0].error().field(),
                absl::StrCat("step.rows[0].compact[", results[0].error().required(0).position(), "]"));
      for (const v1::RequiredLogits& required : results[0].error().required()) {
        ++causes_[required.cause()];
        choice.named.resize(std::max<size_t>(choice.named.size(), required.position() + 1));
        choice.named[required.position()].assign(required.tokens().begin(), required.tokens().end());
      }
      choice.unit_sum = choice.sum = true;
    }
    ADD_FAILURE() << "a whole row was required again";
    return {};
  }

  static std::string* CheckpointOf(v1::RowResult* result) {
    return result->has_draw()     ? result->mutable_draw()->mutable_checkpoint()
           : result->has_verify() ? result->mutable_verify()->mutable_checkpoint()
                                  : result->mutable_score()->mutable_checkpoint();
  }

  void ExpectEqualSteps(Random* random, Text* text) {
    const auto dtype = static_cast<kernels::DType>(Pick(random, 3));
    StepBuilder step(++batch_, text->open.vocabulary_size(), dtype);
    AddRow(random, text, dtype, &step);
    step.step().mutable_rows(0)->set_checkpoint(text->whole_checkpoint);
    const std::vector<v1::RowResult> results = whole_.Run(step.Build());
    whole_.LetLeave();
    ASSERT_EQ(results.size(), 1u);
    v1::RowResult expected = results[0];
    v1::RowResult result = Decide(random, step.Build(), *text);
    if (expected.has_error()) {
      EXPECT_EQ(result.error().reason(), expected.error().reason()) << expected.ShortDebugString();
      return;
    }
    // The two are sealed for two owners.
    std::string whole = std::exchange(*CheckpointOf(&expected), "");
    std::string compact = std::exchange(*CheckpointOf(&result), "");
    ASSERT_EQ(result.SerializeAsString(), expected.SerializeAsString()) << result.ShortDebugString() << "\n"
                                                                        << expected.ShortDebugString() << "\n"
                                                                        << text->open.ShortDebugString();
    if (expected.has_score()) return;
    text->whole_checkpoint = std::move(whole);
    text->compact_checkpoint = std::move(compact);
    if (expected.has_draw()) text->plain.Append(expected.draw().token());
    for (const v1::Position& position : expected.verify().positions()) text->plain.Append(position.token());
  }

  void ExpectEqualTexts(uint64_t seed, uint64_t texts, uint32_t vocabulary) {
    Random random(seed);
    for (uint64_t number = 1; number <= texts; ++number) {
      Text text(RandomOpen(&random, number, vocabulary));
      whole_.MustOpen(text.open);
      compact_.MustOpen(text.open);
      for (int step = 0; step < 4; ++step) {
        ASSERT_NO_FATAL_FAILURE(ExpectEqualSteps(&random, &text)) << "text " << number << " step " << step;
      }
    }
  }

  StreamWorker whole_{engine_.get(), {.tenant = "whole"}};
  std::map<int, uint64_t> decided_;  // by attempt
  std::map<int, uint64_t> causes_;
};

TEST_F(SessionCompact, EqualsWholeWithEveryOption) {
  const uint64_t texts = testing::Scaled(2'000);
  ExpectEqualTexts(91, texts, kSmall);
  // The tokens that a refusal names decide the row.
  EXPECT_GT(decided_[0], texts * 2 / 5);
  EXPECT_GT(decided_[1], texts / 4);
  EXPECT_EQ(engine_.observer().totals().rows_required, engine_.observer().refused(Reason::kRowRequired));
}

TEST_F(SessionCompact, EqualsWholeInLargeVocabulary) {
  const uint64_t texts = std::max<uint64_t>(testing::Scaled(500), 200);  // fewer do not meet every cause often enough
  ExpectEqualTexts(92, texts, kLarge);
  EXPECT_GT(decided_[0], texts * 2 / 5);
  EXPECT_GT(decided_[2], texts / 20);
  for (const auto cause : {v1::RequiredLogits::CAUSE_TOKENS, v1::RequiredLogits::CAUSE_CUT,
                           v1::RequiredLogits::CAUSE_SUMS, v1::RequiredLogits::CAUSE_ROW}) {
    EXPECT_GT(causes_[cause], 0u) << v1::RequiredLogits::Cause_Name(cause);
  }
}

// Rows of both forms in one step, in any order, answer as they do alone; one without a live token fails alone.
TEST_F(SessionCompact, StepMixesBothForms) {
  Random random(93);
  for (uint64_t round = 1; round <= testing::Scaled(200); ++round) {
    std::vector<Text> texts;
    std::vector<std::optional<CompactChoice>> choices;
    StepBuilder step(++batch_, kSmall);
    for (uint64_t i = 0; i < 6; ++i) {
      Text& text = texts.emplace_back(RandomOpen(&random, round * 10 + i, kSmall));
      whole_.MustOpen(text.open);
      compact_.MustOpen(text.open);
      AddRow(&random, &text, kernels::DType::kF32, &step);
      choices.emplace_back();
      if (OneIn(&random, 2)) {
        choices.back() = CompactChoice{PlainRowParameters(text.open.parameters()), text.live(), kSmall};
      }
    }
    std::vector<v1::RowResult> expected = whole_.Run(step.Build());
    std::vector<v1::RowResult> results = compact_.Run(WithCompactRows(step.Build(), choices));
    ASSERT_EQ(expected.size(), texts.size());
    ASSERT_EQ(results.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      if (results[i].error().reason() == v1::ROW_REQUIRED) continue;
      ASSERT_EQ(results[i].has_error(), expected[i].has_error()) << results[i].ShortDebugString();
      if (expected[i].has_error()) continue;
      CheckpointOf(&expected[i])->clear();
      CheckpointOf(&results[i])->clear();
      EXPECT_EQ(results[i].SerializeAsString(), expected[i].SerializeAsString());
    }
    whole_.LetLeave();
    compact_.LetLeave();
  }
}

// A lost answer: the same step in either form gets it again, and the sequence has advanced once.
TEST_F(SessionCompact, RetryInEitherFormGetsSameAnswer) {
  v1::OpenSequence open = MakeOpen("a", 1, kSmall);
  open.mutable_parameters()->set_presence_penalty(0.5f);
  open.mutable_parameters()->set_top_k(5);
  open.mutable_history()->add_tokens(3);
  compact_.MustOpen(open);
  PlainSequence plain(open);
  Random random(94);
  StepBuilder step(1, kSmall);
  v1::StepRow& row = step.AddRow("a", 1, 1, RandomLogits(kernels::DType::kF32, kSmall, &random));
  row.set_history_hash(plain.hash());
  const v1::StreamRequest whole = step.Build();
  const std::optional<CompactChoice> choices[] = {CompactChoice{PlainRowParameters(open.parameters()), kSmall, 20}};
  const v1::StreamRequest compact = WithCompactRows(whole, choices);
  const v1::RowResult answer = RunOne(compact);
  ASSERT_TRUE(answer.has_draw()) << answer.ShortDebugString();
  EXPECT_EQ(RunOne(whole).SerializeAsString(), answer.SerializeAsString());
  EXPECT_EQ(RunOne(compact).SerializeAsString(), answer.SerializeAsString());
  const uint32_t token = plain.Draw({.logits = whole.payloads(0)}).token();
  EXPECT_EQ(answer.draw().token(), token);
  plain.Append(token);
  EXPECT_EQ(answer.draw().history_hash(), plain.hash());
}

}  // namespace
}  // namespace sortition::service::session_compact_test
