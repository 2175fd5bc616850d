// Scores and verification on a stream: what comes out is what the law's reference says of each position, one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/service/expect_error.h"
#include "tests/service/stateful_stream.h"
#include "tests/support/plain_sequence.h"
#include "tests/support/scale.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service {
namespace {

using testing::F32Bytes;
using testing::F32Peak;
using testing::OpenOf;
using testing::PlainSequence;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

constexpr uint32_t kVocabulary = 48;

// A model: logits that follow from the text.
std::string LogitsAfter(const std::vector<uint32_t>& text, uint64_t model) {
  uint64_t seed = model;
  for (const uint32_t token : text) seed = (seed ^ token) * 0x9e3779b97f4a7c15;
  std::mt19937_64 random(seed);
  std::vector<float> logits(kVocabulary);
  for (float& x : logits) x = float(random() % 4096) / 1024;
  return F32Bytes(logits);
}

// One text as it comes about without speculation, and as the worker writes it.
struct Writer {
  Writer(const v1::OpenSequence& open, uint64_t number)
      : model(number), plain(open), text(open.history().tokens().begin(), open.history().tokens().end()) {}

  // The token that the text goes on with after `ahead`, and its answer.
  v1::DrawResult Right(const std::vector<uint32_t>& ahead) const {
    PlainSequence then = plain;
    std::vector<uint32_t> longer = text;
    for (const uint32_t token : ahead) {
      then.Append(token);
      longer.push_back(token);
    }
    return then.Draw({.logits = LogitsAfter(longer, model)}, static_cast<uint32_t>(longer.size()));
  }
  std::string LogitsOf(const std::vector<uint32_t>& ahead) const {
    std::vector<uint32_t> longer = text;
    longer.insert(longer.end(), ahead.begin(), ahead.end());
    return LogitsAfter(longer, model);
  }
  void Append(uint32_t token) {
    plain.Append(token);
    text.push_back(token);
  }
  void TruncateTo(uint32_t position) {
    plain.TruncateTo(position);
    text.resize(position);
  }

  uint64_t model;
  PlainSequence plain;
  std::vector<uint32_t> text;
  uint64_t step_id = 0;
  uint32_t server_position = 0;  // tokens that the server holds
};

class SessionVerify : public ::testing::Test {
 protected:
  static v1::OpenSequence OpenNumber(uint32_t number, std::mt19937_64* random) {
    v1::OpenSequence open = OpenOf(absl::StrCat("s", number), 1, kVocabulary);
    open.set_seed((*random)());
    v1::SamplingParameters& parameters = *open.mutable_parameters();
    parameters.set_temperature(0.5f + float((*random)() % 100) / 100);
    if ((*random)() % 2 == 0) parameters.set_top_k(4 + static_cast<uint32_t>((*random)() % 20));
    if ((*random)() % 4 != 0) parameters.set_presence_penalty(0.75f);
    if ((*random)() % 4 == 0) parameters.set_repetition_penalty(1.2f);
    if ((*random)() % 4 == 0) parameters.mutable_processed_logprobs()->set_top(3);
    if ((*random)() % 8 == 0) parameters.set_entropy(true);
    if (IsStateful(open)) {
      for (uint32_t i = (*random)() % 5; i > 0; --i) {
        open.mutable_history()->add_tokens(static_cast<uint32_t>((*random)() % kVocabulary));
      }
      open.mutable_history()->set_prompt_length(static_cast<uint32_t>(open.history().tokens_size()));
    }
    return open;
  }
  static bool IsStateful(const v1::OpenSequence& open) {
    return open.parameters().has_presence_penalty() || open.parameters().has_repetition_penalty();
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
};

// 10,000 sequences, with cuts between their steps.
TEST_F(SessionVerify, CoupledTextIsThatOfNoSpeculation) {
  constexpr uint32_t kAtOnce = 50;
  std::mt19937_64 random(81);
  uint64_t accepted = 0;
  uint64_t drafted = 0;
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
      StepBuilder step(++batch_id, kVocabulary);
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
        v1::VerifyChain& chain = *row.mutable_verify_chain();
        chain.set_mode(v1::VERIFY_MODE_COUPLED);
        // Drafts that are right more often than not; what follows a wrong one is drafted, too.
        std::vector<uint32_t> ahead;
        std::vector<v1::DrawResult>& expected = right.emplace_back();
        expected.push_back(writer.Right({}));
        bool holds = true;
        for (uint32_t k = 1 + static_cast<uint32_t>(random() % 5); k > 0; --k) {
          const uint32_t guess =
              random() % 4 != 0 && holds ? expected.back().token() : static_cast<uint32_t>(random() % kVocabulary);
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
        ASSERT_EQ(static_cast<size_t>(verify.tokens_size()), right[i].size()) << verify.ShortDebugString();
        ASSERT_EQ(verify.accepted() + 1, right[i].size());
        for (size_t k = 0; k < right[i].size(); ++k) {
          const int at = static_cast<int>(k);
          ASSERT_EQ(verify.tokens(at), right[i][k].token());
          if (right[i][k].has_processed()) {
            ASSERT_EQ(verify.processed(at).SerializeAsString(), right[i][k].processed().SerializeAsString());
          }
          if (right[i][k].has_entropy()) {
            ASSERT_EQ(verify.entropy(at), right[i][k].entropy());
          }
          writers[i].Append(verify.tokens(at));
        }
        accepted += verify.accepted();
        drafted += static_cast<uint64_t>(verify.position_matched_size());
        ASSERT_EQ(verify.has_history_hash(), IsStateful(opens[i]));
        if (IsStateful(opens[i])) {
          ASSERT_EQ(verify.history_hash(), writers[i].plain.hash());
        }
      }
    }
    for (const v1::OpenSequence& open : opens) worker_.Send(testing::CloseOf(open.request_id(), 1));
  }
  EXPECT_GT(accepted * 10, drafted * 4);
  EXPECT_LT(accepted * 10, drafted * 9);
}

class SessionVerifyRows : public SessionVerify {
 protected:
  SessionVerifyRows() {
    open_ = OpenOf("a", 1, kVocabulary);
    open_.set_seed(99);
    open_.mutable_parameters()->mutable_processed_logprobs();
  }
  // Rows of this test's own model.
  static std::string Logits(uint64_t number) { return LogitsAfter({}, 5000 + number); }

  v1::RowResult RunOne(const StepBuilder& step) {
    const std::vector<v1::RowResult> results = worker_.Run(step.Build());
    return results.size() == 1 ? results[0] : v1::RowResult();
  }

  v1::OpenSequence open_;
};

// Random drafts, judged against dense probabilities, lists, and as certain ones: as the reference says, row by row.
TEST_F(SessionVerifyRows, RejectionIsTheReferencesVerdictAtEachPosition) {
  worker_.MustOpen(open_);
  const PlainSequence plain(open_);
  std::mt19937_64 random(82);
  std::array<uint64_t, 4> lengths = {};
  for (uint64_t n = 1; n <= testing::Scaled(2'000); ++n) {
    const auto position = static_cast<uint32_t>(n * 10);
    StepBuilder step(n, kVocabulary);
    v1::StepRow& row = step.AddRow("a", n, position, Logits(4 * n));
    for (uint64_t i = 1; i <= 3; ++i) step.AddTensorRow(Logits(4 * n + i));
    v1::VerifyChain& chain = *row.mutable_verify_chain();
    chain.set_mode(v1::VERIFY_MODE_REJECTION);
    const uint64_t form = n % 3;
    if (form == 1) step.AddDraftRow(std::vector<float>(kVocabulary, 1.0f / kVocabulary));  // another row's
    if (form == 1) chain.set_draft_row(1);
    std::vector<kernels::RowAnswer> expected;
    for (uint32_t i = 0; i < 3; ++i) {
      std::vector<float> q(kVocabulary);
      const auto draft = static_cast<uint32_t>(random() % kVocabulary);
      std::vector<uint32_t> tokens;
      std::vector<uint32_t> bits;
      for (uint32_t id = 0; id < kVocabulary; ++id) {
        if (form == 2 && id % 5 != draft % 5) continue;
        q[id] = form == 2 ? 0.1f : 1.0f / kVocabulary;
      }
      if (form == 2) {
        const float rest = 1 - 0.1f * (float(std::ranges::count(q, 0.1f)) - 1);
        q[draft] = rest;
        v1::SparseProbabilities& sparse = *chain.add_sparse_probabilities();
        for (uint32_t id = 0; id < kVocabulary; ++id) {
          if (q[id] == 0) continue;
          tokens.push_back(id);
          bits.push_back(std::bit_cast<uint32_t>(q[id]));
          sparse.add_tokens(id);
          sparse.add_probabilities(q[id]);
        }
      }
      chain.add_draft_tokens(draft);
      if (form == 1) step.AddDraftRow(q);
      kernels::DraftDistribution distribution;
      distribution.form = form == 0   ? kernels::DraftDistribution::Form::kCertain
                          : form == 1 ? kernels::DraftDistribution::Form::kDense
                                      : kernels::DraftDistribution::Form::kSparse;
      distribution.dense = q.data();
      if (form == 2) {
        distribution.sparse_tokens = tokens;
        distribution.sparse_bits = bits;
      }
      if (expected.size() < i || (i > 0 && !expected.back().accepted)) continue;
      const std::string logits = Logits(4 * n + i);
      expected.push_back(plain.Answer(
          {.logits = logits, .task = kernels::RowTask::kVerify, .given = draft, .draft = distribution}, position + i));
    }
    if (expected.back().accepted) expected.push_back(plain.Answer({.logits = Logits(4 * n + 3)}, position + 3));
    const v1::RowResult result = RunOne(step);
    ASSERT_TRUE(result.has_verify()) << result.ShortDebugString();
    const v1::VerifyResult& verify = result.verify();
    ASSERT_EQ(static_cast<size_t>(verify.tokens_size()), expected.size());
    ASSERT_EQ(verify.accepted() + 1, expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(verify.tokens(static_cast<int>(i)), expected[i].token);
      ASSERT_EQ(verify.processed(static_cast<int>(i)).SerializeAsString(),
                plain.Encode(expected[i]).processed().SerializeAsString());
    }
    ++lengths[verify.accepted()];
    worker_.LetLeave();
  }
  for (const uint64_t count : lengths) EXPECT_GT(count, 0u);
}

TEST_F(SessionVerifyRows, FullAcceptanceAndCertainRejection) {
  worker_.MustOpen(open_);
  StepBuilder step(1, kVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kVocabulary, 1));
  for (const uint32_t token : {2u, 3u, 4u}) step.AddTensorRow(F32Peak(kVocabulary, token));
  for (const uint32_t token : {1u, 2u, 3u}) row.mutable_verify_chain()->add_draft_tokens(token);
  row.mutable_verify_chain()->set_mode(v1::VERIFY_MODE_REJECTION);
  v1::VerifyResult verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 3u);
  EXPECT_EQ(verify.tokens(3), 4u);
  EXPECT_EQ(verify.matched(), 3u);
  // The second is wrong; the third would have been right.
  row.set_step_id(2);
  step.step().set_batch_id(2);
  row.mutable_verify_chain()->set_draft_tokens(1, 9);
  verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 1u);
  ASSERT_EQ(verify.tokens_size(), 2);
  EXPECT_EQ(verify.tokens(1), 2u);
  EXPECT_EQ(verify.matched(), 2u);
  ASSERT_EQ(verify.position_matched_size(), 3);
  EXPECT_FALSE(verify.position_matched(1));
  EXPECT_TRUE(verify.position_matched(2));
  EXPECT_EQ(verify.processed_size(), 2);
}

// A tree whose continuations are some of the tokens that may be drawn.
TEST_F(SessionVerifyRows, TreesAreWalkedAlongWhatIsDrawn) {
  open_.mutable_parameters()->set_presence_penalty(1);
  open_.mutable_history()->set_prompt_length(0);
  worker_.MustOpen(open_);
  Writer writer(open_, 7);
  std::mt19937_64 random(83);
  uint64_t accepted = 0;
  bool cut = false;  // by the next step
  for (uint64_t n = 1; n <= testing::Scaled(300); ++n) {
    StepBuilder step(n, kVocabulary);
    v1::StepRow& row = step.AddRow("a", n, writer.plain.position(), writer.LogitsOf({}));
    row.set_history_hash(writer.plain.hash());
    if (cut) row.set_truncate_to(5);
    v1::VerifyTree& tree = *row.mutable_verify_tree();
    tree.set_mode(n % 2 == 0 ? v1::VERIFY_MODE_COUPLED : v1::VERIFY_MODE_REJECTION);
    std::vector<std::vector<uint32_t>> ways = {{}};  // to each position
    for (int i = 0; i < 12; ++i) {
      const auto parent = static_cast<size_t>(random() % ways.size());
      const uint32_t token =
          random() % 2 == 0 ? writer.Right(ways[parent]).token() : static_cast<uint32_t>(random() % kVocabulary);
      std::vector<uint32_t> way = ways[parent];
      way.push_back(token);
      if (std::ranges::find(ways, way) != ways.end()) continue;
      tree.add_draft_tokens(token);
      tree.add_parents(static_cast<int32_t>(parent) - 1);
      step.AddTensorRow(writer.LogitsOf(way));
      ways.push_back(way);
    }
    std::vector<uint32_t> right = {writer.Right({}).token()};
    while (std::ranges::find(ways, right) != ways.end()) right.push_back(writer.Right(right).token());
    const v1::RowResult result = RunOne(step);
    ASSERT_TRUE(result.has_verify()) << result.ShortDebugString();
    const v1::VerifyResult& verify = result.verify();
    ASSERT_EQ(std::vector<uint32_t>(verify.tokens().begin(), verify.tokens().end()), right);
    ASSERT_EQ(verify.accepted() + 1, right.size());
    ASSERT_EQ(static_cast<uint32_t>(verify.path_size()), verify.accepted());
    for (int i = 0; i < verify.path_size(); ++i) {
      ASSERT_EQ(tree.draft_tokens(static_cast<int>(verify.path(i))), right[static_cast<size_t>(i)]);
    }
    for (const uint32_t token : right) writer.Append(token);
    ASSERT_EQ(verify.history_hash(), writer.plain.hash());
    accepted += verify.accepted();
    cut = writer.text.size() > 40;
    if (cut) writer.TruncateTo(5);
    worker_.LetLeave();
  }
  EXPECT_GT(accepted, testing::Scaled(300));
}

TEST_F(SessionVerifyRows, ARepeatedStepGetsTheSameAnswerAndCountsOnce) {
  open_.mutable_parameters()->set_presence_penalty(1);
  open_.mutable_parameters()->mutable_kept_set()->set_tokens(true);
  open_.mutable_history()->set_prompt_length(0);
  const v1::OpenedState state = worker_.MustOpen(open_);
  StepBuilder step(1, kVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kVocabulary, 1));
  step.AddTensorRow(F32Peak(kVocabulary, 2));
  row.set_history_hash(state.history_hash());
  row.mutable_verify_chain()->add_draft_tokens(1);
  row.mutable_verify_chain()->set_mode(v1::VERIFY_MODE_COUPLED);
  row.mutable_verify_chain()->set_return_probabilities(true);
  const v1::RowResult first = RunOne(step);
  EXPECT_EQ(first.verify().accepted(), 1u);
  EXPECT_EQ(RunOne(step).SerializeAsString(), first.SerializeAsString());
  row.mutable_verify_chain()->set_draft_tokens(0, 2);
  ExpectError(RunOne(step), Reason::kStepConflict, "step.rows[0].step_id");
}

TEST_F(SessionVerifyRows, AStopTokenEndsThePrefix) {
  open_.mutable_parameters()->add_stop_token_ids(2);
  worker_.MustOpen(open_);
  StepBuilder step(1, kVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kVocabulary, 1));
  for (const uint32_t token : {2u, 3u, 4u}) step.AddTensorRow(F32Peak(kVocabulary, token));
  for (const uint32_t token : {1u, 2u, 3u}) row.mutable_verify_chain()->add_draft_tokens(token);
  row.mutable_verify_chain()->set_mode(v1::VERIFY_MODE_COUPLED);
  const v1::VerifyResult verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 2u);
  EXPECT_EQ(std::vector<uint32_t>(verify.tokens().begin(), verify.tokens().end()), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(verify.matched(), 3u);
}

// What fails the rows of positions behind the first wrong draft concerns nobody.
TEST_F(SessionVerifyRows, OnlyPositionsThatMatterCanFail) {
  worker_.MustOpen(open_);
  std::vector<float> broken(kVocabulary);
  broken[5] = std::numeric_limits<float>::quiet_NaN();
  for (uint64_t n = 1; n <= 2; ++n) {
    StepBuilder step(n, kVocabulary);
    v1::StepRow& row = step.AddRow("a", n, 0, F32Peak(kVocabulary, 1));
    step.AddTensorRow(F32Bytes(broken));
    row.mutable_verify_chain()->add_draft_tokens(n == 1 ? 2 : 1);
    row.mutable_verify_chain()->set_mode(v1::VERIFY_MODE_COUPLED);
    const v1::RowResult result = RunOne(step);
    if (n == 1) {
      EXPECT_EQ(result.verify().tokens(0), 1u);
    } else {
      ExpectError(result, Reason::kLogitNan, "step.rows[0]");
    }
  }
}

TEST_F(SessionVerifyRows, DenseProbabilitiesThatAreNoneFailTheirRow) {
  worker_.MustOpen(open_);
  std::vector<float> q(kVocabulary, 1.0f / kVocabulary);
  const auto run = [&](uint64_t id) {
    StepBuilder step(id, kVocabulary);
    v1::StepRow& row = step.AddRow("a", id, 0, Logits(1));
    step.AddTensorRow(Logits(2));
    row.mutable_verify_chain()->add_draft_tokens(7);
    row.mutable_verify_chain()->set_mode(v1::VERIFY_MODE_REJECTION);
    row.mutable_verify_chain()->set_draft_row(step.AddDraftRow(q));
    return RunOne(step);
  };
  EXPECT_TRUE(run(1).has_verify());
  q[3] = -0.125f;
  ExpectError(run(2), Reason::kOutOfRange, "step.rows[0]");
  q[3] = 0.125f;
  ExpectError(run(3), Reason::kOutOfRange, "step.rows[0]");
  q[3] = 2.0f / kVocabulary;
  q[7] = 0;
  ExpectError(run(4), Reason::kContradiction, "step.rows[0]");
}

TEST_F(SessionVerifyRows, MasksHoldAtTheirPositions) {
  worker_.MustOpen(open_);
  StepBuilder step(1, kVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kVocabulary, 1));
  step.AddTensorRow(F32Peak(kVocabulary, 2));
  v1::VerifyChain& chain = *row.mutable_verify_chain();
  chain.add_draft_tokens(1);
  chain.set_mode(v1::VERIFY_MODE_COUPLED);
  std::vector<bool> all(kVocabulary, true);
  chain.add_masks()->set_mask_row(step.AddMask(all));
  chain.add_masks()->mutable_allowed_tokens()->add_tokens(30);
  v1::VerifyResult verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 1u);
  EXPECT_EQ(verify.tokens(1), 30u);
  all[1] = false;
  chain.mutable_masks(0)->set_mask_row(step.AddMask(all));
  row.set_step_id(2);
  step.step().set_batch_id(2);
  verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 0u);
  EXPECT_NE(verify.tokens(0), 1u);
}

TEST_F(SessionVerifyRows, ScoresChangeNothing) {
  open_.mutable_parameters()->set_presence_penalty(1);
  open_.mutable_parameters()->mutable_raw_logprobs();
  open_.mutable_parameters()->add_logprob_token_ids(3);
  open_.mutable_parameters()->set_entropy(true);
  open_.mutable_parameters()->set_top_k(10);
  open_.mutable_history()->set_prompt_length(0);
  worker_.MustOpen(open_);
  PlainSequence plain(open_);
  StepBuilder step(1, kVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, Logits(0));
  row.set_history_hash(plain.hash());
  const std::vector<uint32_t> given = {5, 9, 5};
  for (uint64_t i = 1; i < given.size(); ++i) step.AddTensorRow(Logits(i));
  for (const uint32_t token : given) row.mutable_score()->add_tokens(token);
  const v1::RowResult result = RunOne(step);
  ASSERT_TRUE(result.has_score()) << result.ShortDebugString();
  PlainSequence after = plain;
  for (uint32_t i = 0; i < given.size(); ++i) {
    const std::string logits = Logits(i);
    const v1::DrawResult expected =
        plain.Encode(after.Answer({.logits = logits, .task = kernels::RowTask::kScore, .given = given[i]}, i));
    const int at = static_cast<int>(i);
    EXPECT_EQ(result.score().raw(at).SerializeAsString(), expected.raw().SerializeAsString());
    EXPECT_EQ(result.score().processed(at).SerializeAsString(), expected.processed().SerializeAsString());
    EXPECT_EQ(result.score().entropy(at), expected.entropy());
    EXPECT_EQ(result.score().raw(at).requested_ranks_size(), 1);
    after.Append(given[i]);
  }
  // The sequence stands where it stood.
  StepBuilder draw(2, kVocabulary);
  draw.AddRow("a", 2, 0, Logits(0)).set_history_hash(plain.hash());
  const std::string logits = Logits(0);
  EXPECT_EQ(RunOne(draw).draw().token(), plain.Draw({.logits = logits}).token());
}

TEST_F(SessionVerifyRows, ATokenThatIsFilteredOutScoresMinusInfinity) {
  open_.mutable_parameters()->set_top_k(1);
  open_.mutable_parameters()->mutable_raw_logprobs();
  worker_.MustOpen(open_);
  StepBuilder step(1, kVocabulary);
  step.AddRow("a", 1, 0, F32Bytes(std::vector<float>(kVocabulary))).mutable_score()->add_tokens(1);
  const v1::ScoreResult score = RunOne(step).score();
  EXPECT_EQ(score.processed(0).logprob(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(score.processed(0).rank(), 0u);
  EXPECT_EQ(score.raw(0).rank(), 2u);
}

// Answers larger than a message come in pieces; what was filtered out has the probability 0 exactly.
TEST_F(SessionVerifyRows, KeptSetsAndProbabilitiesComeInPieces) {
  constexpr uint32_t kLarge = 150'000;
  v1::OpenSequence open = OpenOf("large", 1, kLarge);
  open.mutable_parameters()->mutable_kept_set()->set_tokens(true);
  open.mutable_parameters()->mutable_kept_set()->set_count(true);
  open.mutable_parameters()->set_top_k(140'000);
  worker_.MustOpen(open);
  std::vector<float> logits(kLarge);
  for (uint32_t id = 0; id < kLarge; ++id) logits[id] = float(id % 1000) / 500;
  StepBuilder step(1, kLarge);
  step.AddRow("large", 1, 0, F32Bytes(logits));
  worker_.Send(step.Build());
  v1::DrawResult draw;
  int pieces = 0;
  do {
    const auto response = worker_.Await([](const v1::StreamResponse& message) { return message.has_results(); });
    ASSERT_TRUE(response.has_value());
    ASSERT_LT(response->ByteSizeLong(), 3u << 20);
    for (const v1::RowResult& row : response->results().rows()) {
      draw.clear_continues();
      draw.MergeFrom(row.draw());
      ++pieces;
    }
  } while (draw.continues());
  EXPECT_EQ(pieces, 3);
  EXPECT_EQ(draw.kept_count(), 140'000u);
  ASSERT_EQ(draw.kept_tokens_size(), 140'000);
  EXPECT_TRUE(std::is_sorted(draw.kept_tokens().begin(), draw.kept_tokens().end()));
  EXPECT_TRUE(worker_.IsIdle()) << "a row in pieces counts once";

  StepBuilder verify_step(2, kLarge);
  v1::StepRow& row = verify_step.AddRow("large", 2, 0, F32Bytes(logits));
  verify_step.AddTensorRow(F32Bytes(logits));
  row.mutable_verify_chain()->add_draft_tokens(draw.token());
  row.mutable_verify_chain()->set_mode(v1::VERIFY_MODE_COUPLED);
  row.mutable_verify_chain()->set_return_probabilities(true);
  const std::vector<v1::RowResult> results = worker_.Run(verify_step.Build());
  ASSERT_EQ(results.size(), 1u);
  const v1::VerifyResult& verify = results[0].verify();
  EXPECT_EQ(verify.accepted(), 1u);
  std::vector<std::vector<float>> probabilities(2, std::vector<float>(kLarge, -1));
  for (const v1::ProbabilityPiece& piece : verify.probabilities()) {
    ASSERT_LT(piece.index(), 2u);
    ASSERT_LE(piece.first_token() + piece.probabilities().size() / 4, kLarge);
    std::memcpy(probabilities[piece.index()].data() + piece.first_token(), piece.probabilities().data(),
                piece.probabilities().size());
  }
  for (const std::vector<float>& row_probabilities : probabilities) {
    double sum = 0;
    uint32_t zeros = 0;
    for (const float p : row_probabilities) {
      ASSERT_GE(p, 0);
      sum += p;
      zeros += p == 0;
    }
    EXPECT_NEAR(sum, 1, 1e-4);
    EXPECT_EQ(zeros, kLarge - 140'000);
  }
}

}  // namespace
}  // namespace sortition::service
