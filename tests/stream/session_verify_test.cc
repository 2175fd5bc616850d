// Verification on a stream: the results equal the law's reference at each position.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/stream/stateful_stream.h"
#include "tests/support/judged_rows.h"
#include "tests/support/scale.h"

namespace sortition::service::session_verify_test {
namespace {

using SessionVerify = JudgedRows;

// Random drafts, judged against dense probabilities, lists, and as certain ones: as the reference says, row by row.
TEST_F(SessionVerify, RejectionEqualsReferenceEverywhere) {
  worker_.MustOpen(open_);
  const PlainSequence plain(open_);
  std::mt19937_64 random(82);
  std::array<uint64_t, 4> lengths = {};
  for (uint64_t n = 1; n <= testing::Scaled(2'000); ++n) {
    const auto position = static_cast<uint32_t>(n * 10);
    StepBuilder step(n, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", n, position, Logits(4 * n));
    for (uint64_t i = 1; i <= 3; ++i) step.AddTensorRow(Logits(4 * n + i));
    v1::VerifyDraft& chain = *row.mutable_verify_draft();
    chain.set_mode(v1::VERIFY_MODE_REJECTION);
    const uint64_t form = n % 3;
    if (form == 1) step.AddDraftRow(std::vector<float>(kModelVocabulary, 1.0f / kModelVocabulary));  // another row's
    if (form == 1) chain.set_draft_row(1);
    std::vector<kernels::RowOutput> expected;
    for (uint32_t i = 0; i < 3; ++i) {
      std::vector<float> q(kModelVocabulary);
      const auto draft = static_cast<uint32_t>(random() % kModelVocabulary);
      std::vector<uint32_t> tokens;
      std::vector<uint32_t> bits;
      for (uint32_t id = 0; id < kModelVocabulary; ++id) {
        if (form == 2 && id % 5 != draft % 5) continue;
        q[id] = form == 2 ? 0.1f : 1.0f / kModelVocabulary;
      }
      if (form == 2) {
        const float rest = 1 - 0.1f * (float(std::ranges::count(q, 0.1f)) - 1);
        q[draft] = rest;
        v1::SparseProbabilities& sparse = *chain.add_sparse_probabilities();
        for (uint32_t id = 0; id < kModelVocabulary; ++id) {
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
    const v1::VerifyResult verify = RunVerify(step);
    ASSERT_EQ(static_cast<size_t>(verify.positions_size()), expected.size());
    ASSERT_EQ(verify.accepted() + 1, expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(verify.positions(static_cast<int>(i)).token(), expected[i].token);
      ASSERT_EQ(verify.positions(static_cast<int>(i)).processed().SerializeAsString(),
                plain.Encode(expected[i]).processed().SerializeAsString());
    }
    ++lengths[verify.accepted()];
    worker_.LetLeave();
  }
  for (const uint64_t count : lengths) EXPECT_GT(count, 0u);
}

TEST_F(SessionVerify, FullAcceptanceAndCertainRejection) {
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kModelVocabulary, 1));
  for (const uint32_t token : {2u, 3u, 4u}) step.AddTensorRow(F32Peak(kModelVocabulary, token));
  for (const uint32_t token : {1u, 2u, 3u}) row.mutable_verify_draft()->add_draft_tokens(token);
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_REJECTION);
  v1::VerifyResult verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 3u);
  EXPECT_EQ(verify.positions(3).token(), 4u);
  EXPECT_EQ(verify.matched(), 3u);
  // The second is wrong; the third would have been right.
  row.set_step_id(2);
  step.step().set_batch_id(2);
  row.mutable_verify_draft()->set_draft_tokens(1, 9);
  verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 1u);
  ASSERT_EQ(verify.positions_size(), 2);
  EXPECT_EQ(verify.positions(1).token(), 2u);
  EXPECT_EQ(verify.matched(), 2u);
  ASSERT_EQ(verify.position_matched_size(), 3);
  EXPECT_FALSE(verify.position_matched(1));
  EXPECT_TRUE(verify.position_matched(2));
  EXPECT_TRUE(verify.positions(0).has_processed() && verify.positions(1).has_processed());
}

TEST(SessionDrafts, RowInPiecesIsCopiedOnce) {
  std::set<const void*> copies;
  testing::FakeDevice::Options device;
  device.sample = [&](const devices::DeviceRow& row) {
    if (row.request.draft.dense != nullptr) copies.insert(row.request.draft.dense);
    return testing::SampleByReference(row);
  };
  TestEngine engine = TestEngine::OnFake({}, device);
  StreamWorker worker(engine.get());
  StepBuilder step(1, kModelVocabulary);
  const uint32_t drafts = step.AddDraftRow(std::vector<float>(kModelVocabulary, 1.0f / kModelVocabulary));
  for (const char* const id : {"a", "b", "c"}) {
    worker.MustOpen(MakeOpen(id, 1, kModelVocabulary));
    v1::VerifyDraft& chain = *step.AddRow(id, 1, 0, F32Peak(kModelVocabulary, 1)).mutable_verify_draft();
    step.AddTensorRow(F32Peak(kModelVocabulary, 2));
    chain.set_mode(v1::VERIFY_MODE_REJECTION);
    chain.add_draft_tokens(1);
    chain.set_draft_row(drafts);
  }
  std::string bytes = step.Build().SerializeAsString();
  std::vector<size_t> cuts;
  for (size_t cut = 40; cut < bytes.size(); cut += 40) cuts.push_back(cut);
  const testing::Delivery delivery = testing::Deliver(std::move(bytes), cuts);
  auto frame = DecodeFrame(delivery.segments, delivery.bytes);
  worker.session().BeginFrame(std::move(std::get<Frame>(frame)));
  engine.fake().FinishAll();
  EXPECT_EQ(worker.Results(1, 3).size(), 3u);
  EXPECT_EQ(copies.size(), 1u);
}

// A tree whose continuations are some of the tokens that may be drawn.
TEST_F(SessionVerify, TreesAreWalkedAlongDrawnTokens) {
  open_.mutable_parameters()->set_presence_penalty(1);
  open_.mutable_history()->set_prompt_length(0);
  worker_.MustOpen(open_);
  Writer writer(open_, 7);
  std::mt19937_64 random(83);
  uint64_t accepted = 0;
  bool cut = false;  // by the next step
  for (uint64_t n = 1; n <= testing::Scaled(300); ++n) {
    StepBuilder step(n, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", n, writer.plain.position(), writer.LogitsOf({}));
    row.set_history_hash(writer.plain.hash());
    if (cut) row.set_truncate_to(5);
    v1::VerifyTree& tree = *row.mutable_verify_tree();
    tree.set_mode(n % 2 == 0 ? v1::VERIFY_MODE_COUPLED : v1::VERIFY_MODE_REJECTION);
    std::vector<std::vector<uint32_t>> ways = {{}};  // to each position
    for (int i = 0; i < 12; ++i) {
      const auto parent = static_cast<size_t>(random() % ways.size());
      const uint32_t token =
          random() % 2 == 0 ? writer.Right(ways[parent]).token() : static_cast<uint32_t>(random() % kModelVocabulary);
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
    const v1::VerifyResult verify = RunVerify(step);
    ASSERT_EQ(testing::TokensOf(verify), right);
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

TEST_F(SessionVerify, RepeatedStepGetsSameAnswerCountsOnce) {
  open_.mutable_parameters()->set_presence_penalty(1);
  open_.mutable_parameters()->mutable_kept_set()->set_tokens(true);
  open_.mutable_history()->set_prompt_length(0);
  const v1::OpenedState state = worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kModelVocabulary, 1));
  step.AddTensorRow(F32Peak(kModelVocabulary, 2));
  row.set_history_hash(state.history_hash());
  row.mutable_verify_draft()->add_draft_tokens(1);
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
  row.mutable_verify_draft()->set_return_probabilities(true);
  const v1::RowResult first = RunOne(step);
  EXPECT_EQ(first.verify().accepted(), 1u);
  EXPECT_EQ(RunOne(step).SerializeAsString(), first.SerializeAsString());
  row.mutable_verify_draft()->set_draft_tokens(0, 2);
  ExpectError(RunOne(step), Reason::kStepConflict, "step.rows[0].step_id");
}

// Each position has different penalties: their memory counts with the sequences while the step runs.
TEST(SessionVerifyMemory, DraftsWithoutRoomAreRefused) {
  TestEngine engine = TestEngine::OnCpu({.max_state_bytes = 48 << 10});
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, kModelVocabulary);
  open.mutable_parameters()->set_frequency_penalty(1);
  for (uint32_t token = 0; token < kModelVocabulary; ++token) open.mutable_history()->add_tokens(token);
  open.mutable_history()->set_prompt_length(0);
  const v1::OpenedState state = worker.MustOpen(open);
  const uint64_t idle = engine->sequences().state_bytes();
  const auto run = [&](uint64_t step_id, uint32_t drafts) {
    StepBuilder step(step_id, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", step_id, kModelVocabulary, F32Peak(kModelVocabulary, 1));
    row.set_history_hash(state.history_hash());
    for (uint32_t i = 0; i < drafts; ++i) {
      step.AddTensorRow(F32Peak(kModelVocabulary, 1));
      row.mutable_verify_draft()->add_draft_tokens((2 + i) % kModelVocabulary);
    }
    row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
    return worker.RunOne(step.Build());
  };
  const v1::RowResult refused = run(1, 64);
  ExpectError(refused, Reason::kOverloaded, "step.rows[0]");
  EXPECT_LT(engine->sequences().state_bytes(), idle + 1000);
  EXPECT_EQ(run(1, 3).verify().positions_size(), 1);
}

TEST_F(SessionVerify, StopTokenEndsPrefix) {
  open_.mutable_parameters()->add_stop_token_ids(2);
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kModelVocabulary, 1));
  for (const uint32_t token : {2u, 3u, 4u}) step.AddTensorRow(F32Peak(kModelVocabulary, token));
  for (const uint32_t token : {1u, 2u, 3u}) row.mutable_verify_draft()->add_draft_tokens(token);
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
  const v1::VerifyResult verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 2u);
  EXPECT_EQ(testing::TokensOf(verify), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(verify.matched(), 3u);
}

// Errors at positions behind the first wrong draft are ignored.
TEST_F(SessionVerify, OnlyNeededPositionsCanFail) {
  worker_.MustOpen(open_);
  std::vector<float> broken(kModelVocabulary);
  broken[5] = std::numeric_limits<float>::quiet_NaN();
  for (uint64_t n = 1; n <= 2; ++n) {
    StepBuilder step(n, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", n, 0, F32Peak(kModelVocabulary, 1));
    step.AddTensorRow(F32Bytes(broken));
    row.mutable_verify_draft()->add_draft_tokens(n == 1 ? 2 : 1);
    row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
    const v1::RowResult result = RunOne(step);
    if (n == 1) {
      EXPECT_EQ(result.verify().positions(0).token(), 1u);
    } else {
      ExpectError(result, Reason::kLogitNan, "step.rows[0]");
    }
  }
}

TEST_F(SessionVerify, InvalidDenseProbabilitiesFailRow) {
  worker_.MustOpen(open_);
  std::vector<float> q(kModelVocabulary, 1.0f / kModelVocabulary);
  const auto run = [&](uint64_t id) {
    StepBuilder step(id, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", id, 0, Logits(1));
    step.AddTensorRow(Logits(2));
    row.mutable_verify_draft()->add_draft_tokens(7);
    row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_REJECTION);
    row.mutable_verify_draft()->set_draft_row(step.AddDraftRow(q));
    return RunOne(step);
  };
  EXPECT_TRUE(run(1).has_verify());
  q[3] = -0.125f;
  ExpectError(run(2), Reason::kOutOfRange, "step.rows[0]");
  q[3] = 0.125f;
  ExpectError(run(3), Reason::kOutOfRange, "step.rows[0]");
  q[3] = 2.0f / kModelVocabulary;
  q[7] = 0;
  ExpectError(run(4), Reason::kContradiction, "step.rows[0]");
}

TEST_F(SessionVerify, MasksHoldAtTheirPositions) {
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kModelVocabulary, 1));
  step.AddTensorRow(F32Peak(kModelVocabulary, 2));
  v1::VerifyDraft& chain = *row.mutable_verify_draft();
  chain.add_draft_tokens(1);
  chain.set_mode(v1::VERIFY_MODE_COUPLED);
  std::vector<bool> all(kModelVocabulary, true);
  chain.add_masks()->set_mask_row(step.AddMask(all));
  chain.add_masks()->mutable_allowed_tokens()->add_tokens(30);
  v1::VerifyResult verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 1u);
  EXPECT_EQ(verify.positions(1).token(), 30u);
  all[1] = false;
  chain.mutable_masks(0)->set_mask_row(step.AddMask(all));
  row.set_step_id(2);
  step.step().set_batch_id(2);
  verify = RunOne(step).verify();
  EXPECT_EQ(verify.accepted(), 0u);
  EXPECT_NE(verify.positions(0).token(), 1u);
}

}  // namespace
}  // namespace sortition::service::session_verify_test
