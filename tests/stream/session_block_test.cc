// Block verification on a stream: the results follow from the reference's answers by the law's page, position by
// position.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/law/block.h"
#include "tests/support/judged_rows.h"
#include "tests/support/scale.h"

namespace sortition::service::session_block_test {
namespace {

constexpr uint32_t kDrafts = 3;

// A row of three drafts, and the answers that it is due.
struct BlockRow {
  std::vector<kernels::RowOutput> expected;
  uint32_t positions = 0;  // that have to run
};

class SessionBlock : public JudgedRows {
 protected:
  // Probabilities that are near the target's, or give one token more.
  static std::vector<float> Drafter(std::mt19937_64* random, const std::string& logits, uint32_t draft) {
    std::vector<float> q(kModelVocabulary);
    std::memcpy(q.data(), logits.data(), logits.size());
    float sum = 0;
    for (float& x : q) x = std::exp(x + float((*random)() % 64) / 256);
    if ((*random)() % 4 == 0) q[draft] += 20;
    for (const float p : q) sum += p;
    for (float& p : q) p /= sum;
    return q;
  }

  // Adds a row that drafts the tokens that its logits prefer, or others.
  BlockRow Add(const PlainSequence& plain, std::mt19937_64* random, uint64_t n, StepBuilder* step) const {
    const bool keeps_state = open_.has_history();
    const auto position = keeps_state ? plain.position() : static_cast<uint32_t>(n * 10);
    v1::StepRow& row = step->AddRow("a", n, position, Logits(4 * n));
    for (uint64_t i = 1; i <= kDrafts; ++i) step->AddTensorRow(Logits(4 * n + i));
    v1::VerifyDraft& chain = *row.mutable_verify_draft();
    chain.set_mode(v1::VERIFY_MODE_BLOCK);
    const bool is_dense = n % 2 == 0;
    if (is_dense) chain.set_draft_row(0);
    std::vector<std::vector<float>> drafters;
    for (uint32_t i = 0; i < kDrafts; ++i) {
      uint32_t draft = static_cast<uint32_t>((*random)() % kModelVocabulary);
      if (n % 3 != 0) draft = plain.Answer({.logits = Logits(4 * n + i), .draw_salt = 1 + i}, position).token;
      if (keeps_state && (*random)() % 4 == 0) draft = 1 + i % 2;  // tags
      const std::vector<float>& q = drafters.emplace_back(Drafter(random, Logits(4 * n + i), draft));
      chain.add_draft_tokens(draft);
      if (is_dense) {
        step->AddDraftRow(q);
      } else {
        v1::SparseProbabilities& sparse = *chain.add_sparse_probabilities();
        for (uint32_t id = 0; id < kModelVocabulary; ++id) {
          sparse.add_tokens(id);
          sparse.add_probabilities(q[id]);
        }
      }
    }
    return Judge(plain, chain, drafters, n, position);
  }

  // `plain` is at the row's position; a copy of it takes the drafts one by one.
  static BlockRow Judge(PlainSequence plain, const v1::VerifyDraft& chain,
                        const std::vector<std::vector<float>>& drafters, uint64_t n, uint32_t position) {
    PlainSequence accepted = plain;
    uint64_t survival = kernels::RowRequest::kCertainSurvival;
    std::vector<kernels::RowOutput> ends;
    uint32_t end = 0;
    for (uint32_t i = 0; i < kDrafts && survival != 0; ++i) {
      kernels::DraftDistribution q;
      q.form = kernels::DraftDistribution::Form::kDense;
      q.dense = drafters[i].data();
      ends.push_back(plain.Answer({.logits = Logits(4 * n + i),
                                   .task = kernels::RowTask::kVerify,
                                   .given = chain.draft_tokens(static_cast<int>(i)),
                                   .draft = q,
                                   .survival = survival},
                                  position + i));
      if (ends.back().accepted) end = i;
      survival = ends.back().survival;
      plain.Append(chain.draft_tokens(static_cast<int>(i)));
    }
    if (survival != 0) {
      ends.push_back(plain.Answer({.logits = Logits(4 * n + kDrafts)}, position + kDrafts));
      const law::PhiloxWords words = law::BlockWords(law::ToDrawKey({99, position + kDrafts, 0}));
      if (law::MayEndAfter(law::WordOf(words, 1), survival)) end = kDrafts;
    }
    BlockRow row;
    row.positions = static_cast<uint32_t>(ends.size());
    for (uint32_t i = 0; i < end; ++i) {
      // Rejection accepts a draft of next to no probability for certain. A score would not see forced tokens.
      const uint32_t draft = chain.draft_tokens(static_cast<int>(i));
      const uint32_t tiny = std::bit_cast<uint32_t>(0x1p-100f);
      kernels::DraftDistribution q;
      q.form = kernels::DraftDistribution::Form::kSparse;
      q.sparse_tokens = {&draft, 1};
      q.sparse_bits = {&tiny, 1};
      row.expected.push_back(accepted.Answer(
          {.logits = Logits(4 * n + i), .task = kernels::RowTask::kVerify, .given = draft, .draft = q}, position + i));
      accepted.Append(draft);
    }
    row.expected.push_back(ends[end]);
    return row;
  }
};

TEST_F(SessionBlock, EqualsReferenceEverywhere) {
  open_.mutable_parameters()->MergeFrom(ParametersOf("top_k: 30 raw_logprobs { top: 2 } logprob_token_ids: 5"));
  worker_.MustOpen(open_);
  const PlainSequence plain(open_);
  std::mt19937_64 random(84);
  std::array<uint64_t, kDrafts + 1> lengths = {};
  for (uint64_t n = 1; n <= testing::Scaled(2'000); ++n) {
    StepBuilder step(n, kModelVocabulary);
    const BlockRow row = Add(plain, &random, n, &step);
    const v1::VerifyResult verify = RunVerify(step);
    ASSERT_EQ(static_cast<size_t>(verify.positions_size()), row.expected.size()) << n;
    ASSERT_EQ(verify.accepted() + 1, row.expected.size());
    EXPECT_EQ(verify.matched(), verify.accepted());
    for (int i = 0; i < verify.positions_size(); ++i) {
      const kernels::RowOutput& expected = row.expected[static_cast<size_t>(i)];
      ASSERT_EQ(verify.positions(i).token(), expected.token);
      const v1::DrawResult due = plain.Encode(expected);
      ASSERT_EQ(verify.positions(i).processed().SerializeAsString(), due.processed().SerializeAsString());
      ASSERT_EQ(verify.positions(i).raw().SerializeAsString(), due.raw().SerializeAsString());
    }
    ++lengths[verify.accepted()];
    worker_.LetLeave();
  }
  for (const uint64_t count : lengths) EXPECT_GT(count, 0u);
}

// A block crosses the borders of phases, whose temperature, filters and penalties differ.
TEST_F(SessionBlock, PhasesHoldAtTheirPositions) {
  open_.mutable_parameters()->MergeFrom(
      ParametersOf("top_p: 0.9 phases { begin: 1 end: 2 max_tokens: 6 then: [7, 2]"
                   "                    parameters { temperature: 0.4 top_k: 12 frequency_penalty: 0.5 } }"));
  open_.mutable_history()->set_prompt_length(0);
  worker_.MustOpen(open_);
  PlainSequence plain(open_);
  std::mt19937_64 random(85);
  uint64_t crossed = 0;
  uint64_t accepted = 0;
  for (uint64_t n = 1; n <= testing::Scaled(600); ++n) {
    StepBuilder step(n, kModelVocabulary);
    const BlockRow row = Add(plain, &random, n, &step);
    step.step().mutable_rows(0)->set_history_hash(plain.hash());
    const v1::VerifyResult verify = RunVerify(step);
    ASSERT_EQ(static_cast<size_t>(verify.positions_size()), row.expected.size()) << n;
    for (int i = 0; i < verify.positions_size(); ++i) {
      const kernels::RowOutput& expected = row.expected[static_cast<size_t>(i)];
      ASSERT_EQ(verify.positions(i).token(), expected.token);
      const v1::DrawResult due = plain.Encode(expected);
      ASSERT_EQ(verify.positions(i).processed().SerializeAsString(), due.processed().SerializeAsString());
      ASSERT_EQ(verify.positions(i).phase(), due.phase());
      crossed += i > 0 && verify.positions(i).phase() != verify.positions(i - 1).phase();
      plain.Append(expected.token);
    }
    ASSERT_EQ(verify.history_hash(), plain.hash());
    accepted += verify.accepted();
    worker_.LetLeave();
  }
  EXPECT_GT(accepted, testing::Scaled(200));
  EXPECT_GT(crossed, testing::Scaled(20));
}

// An accepted draft that stops the sequence is the last token of the result.
TEST_F(SessionBlock, EndsAtAcceptedStopToken) {
  open_.mutable_parameters()->add_stop_token_ids(2);
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kModelVocabulary, 1));
  for (const uint32_t token : {2u, 3u, 4u}) step.AddTensorRow(F32Peak(kModelVocabulary, token));
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_BLOCK);
  for (const uint32_t token : {1u, 2u, 3u}) {
    row.mutable_verify_draft()->add_draft_tokens(token);
    v1::SparseProbabilities& sparse = *row.mutable_verify_draft()->add_sparse_probabilities();
    sparse.add_tokens(token);
    sparse.add_probabilities(1);
  }
  const v1::VerifyResult verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 2u);
  ASSERT_EQ(verify.positions_size(), 2);
  EXPECT_EQ(verify.positions(1).token(), 2u);
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
}

// Positions behind a draft that the target never yields are not looked at; one before it fails the row.
TEST_F(SessionBlock, PositionsBehindNoSurvivalAreIgnored) {
  open_.mutable_parameters()->set_top_k(1);
  worker_.MustOpen(open_);
  const std::string unusable = F32Bytes(std::vector<float>(kModelVocabulary, 65504.0f));
  for (const bool is_behind : {true, false}) {
    const uint64_t n = is_behind ? 1 : 2;
    StepBuilder step(n, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", n, 0, F32Peak(kModelVocabulary, is_behind ? 1 : 7));
    step.AddTensorRow(unusable);
    row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_BLOCK);
    row.mutable_verify_draft()->add_draft_tokens(7);
    v1::SparseProbabilities& sparse = *row.mutable_verify_draft()->add_sparse_probabilities();
    sparse.add_tokens(7);
    sparse.add_probabilities(1);
    const v1::RowResult result = RunOne(step);
    if (is_behind) {
      ASSERT_EQ(result.verify().positions_size(), 1) << result.ShortDebugString();
      EXPECT_EQ(result.verify().positions(0).token(), 1u);
    } else {
      EXPECT_EQ(result.error().reason(), v1::LOGIT_TOO_LARGE);
    }
  }
}

}  // namespace
}  // namespace sortition::service::session_block_test
