// Steps whose tensors lie in memory regions: the same bits as from the stream, and no act or claim of a worker about
// its memory harms the service.
#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/text/cost.h"
#include "tests/memory/memory_fixture.h"
#include "tests/support/scale.h"

namespace sortition::service::session_memory_test {
namespace {

using testing::F32Peak;
using testing::MakeOpen;
using testing::RandomLogits;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

TEST_F(SessionMemory, LogitsInARegionAreSampled) {
  region_.Write(512, F32Peak(kMemoryVocabulary, 7) + F32Peak(kMemoryVocabulary, 63));
  const auto results = worker_.Run(Step(region_.id, 512));
  EXPECT_EQ(results.at(0).draw().token(), 7u);
  EXPECT_EQ(results.at(1).draw().token(), 63u);
}

TEST_F(SessionMemory, MasksInARegionAreSampled) {
  region_.Write(0, F32Peak(kMemoryVocabulary, 7) + F32Peak(kMemoryVocabulary, 63));
  const uint32_t words[] = {1u << 9, 0};
  std::memcpy(region_.data + 1024, words, sizeof(words));
  v1::StreamRequest request = Step(region_.id, 0);
  request.mutable_step()->mutable_masks()->set_rows(1);
  SetRegion(region_.id, 1024, sizeof(words), request.mutable_step()->mutable_masks()->mutable_source());
  request.mutable_step()->mutable_rows(0)->mutable_mask()->set_mask_row(0);
  const auto results = worker_.Run(request);
  EXPECT_EQ(results.at(0).draw().token(), 9u);
  EXPECT_EQ(results.at(1).draw().token(), 63u);
}

// An uploaded mask is the server's copy: later writes to the memory do not change it.
TEST_F(SessionMemory, MasksAreUploadedFromARegion) {
  const uint32_t words[] = {1u << 9, 0};
  constexpr uint64_t kMaskBytes = sizeof(words);
  std::memcpy(region_.data + 1024, words, kMaskBytes);
  region_.Write(0, F32Peak(kMemoryVocabulary, 7) + F32Peak(kMemoryVocabulary, 63));
  const auto upload = [&](uint64_t region, uint64_t offset, uint64_t length) {
    v1::StreamRequest request;
    request.mutable_upload_mask()->set_mask_id(5);
    request.mutable_upload_mask()->set_vocabulary_size(kMemoryVocabulary);
    request.mutable_upload_mask()->mutable_mask()->set_rows(1);
    SetRegion(region, offset, length, request.mutable_upload_mask()->mutable_mask()->mutable_source());
    return request;
  };
  const auto answer = [&](const v1::StreamRequest& request) {
    worker_.Send(request);
    return worker_.Await([](const auto& message) { return message.has_mask_uploaded(); })->mask_uploaded();
  };
  const v1::MaskUploaded uploaded = answer(upload(region_.id, 1024, kMaskBytes));
  EXPECT_FALSE(uploaded.has_error()) << uploaded.ShortDebugString();
  std::memset(region_.data + 1024, 0xff, kMaskBytes);

  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const std::string field = "upload_mask.mask.source.region";
  ExpectError(answer(upload(region_.id, kRegionBytes, kMaskBytes)).error(), Reason::kOutOfRange, field);
  ExpectError(answer(upload(region_.id, kMost - 7, kMaskBytes)).error(), Reason::kOutOfRange, field);
  ExpectError(answer(upload(region_.id, 0, kMost)).error(), Reason::kOutOfRange, field);
  ExpectError(answer(upload(region_.id, 1026, kMaskBytes)).error(), Reason::kOutOfRange, field + ".offset");
  ExpectError(answer(upload(region_.id, 1024, kMaskBytes + 4)).error(), Reason::kSizeMismatch, field + ".length");
  ExpectError(answer(upload(region_.id + 1000, 0, kMaskBytes)).error(), Reason::kUnknownRegion, field + ".region_id");
  v1::StreamRequest both = upload(region_.id, 1024, kMaskBytes);
  both.add_payloads(std::string(kMaskBytes, 0));
  ExpectError(answer(both).error(), Reason::kTooMany, "payloads");
  ASSERT_EQ(connection_->Unregister(region_.id), std::nullopt);
  ExpectError(answer(upload(region_.id, 1024, kMaskBytes)).error(), Reason::kUnknownRegion, field + ".region_id");
  EXPECT_EQ(engine_->regions().use().regions, 0u) << "a mask keeps no region";

  StepBuilder step(++batch_, kMemoryVocabulary);
  v1::StepRow& row = step.AddRow("a", batch_, 0, F32Peak(kMemoryVocabulary, 7));
  row.mutable_mask()->set_uploaded_mask_id(5);
  EXPECT_EQ(worker_.Run(step.Build()).at(0).draw().token(), 9u);
}

TEST_F(SessionMemory, RangesOutsideRegionAreRefused) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const std::string field = "step.logits.source.region";
  ExpectRefused(Step(region_.id, kRegionBytes - 2 * kMemoryRowBytes + 4), Reason::kOutOfRange, field);
  ExpectRefused(Step(region_.id, kRegionBytes), Reason::kOutOfRange, field);
  ExpectRefused(Step(region_.id, kMost - kMemoryRowBytes + 1), Reason::kOutOfRange, field);
  ExpectRefused(Step(region_.id, kMost - 3), Reason::kOutOfRange, field);
  ExpectRefused(Step(region_.id, 0, kMost), Reason::kOutOfRange, field);
  ExpectRefused(Step(region_.id, 8, kMost - 7), Reason::kOutOfRange, field);
  ExpectRefused(Step(region_.id, 0, 0), Reason::kOutOfRange, field);
  ExpectRefused(Step(region_.id, 2), Reason::kOutOfRange, field + ".offset");
  ExpectRefused(Step(region_.id, 0, 2 * kMemoryRowBytes - 4), Reason::kSizeMismatch, field + ".length");
  ExpectRefused(Step(region_.id, 0, 2 * kMemoryRowBytes + 4), Reason::kSizeMismatch, field + ".length");
  region_.Write(kRegionBytes - 2 * kMemoryRowBytes, F32Peak(kMemoryVocabulary, 1) + F32Peak(kMemoryVocabulary, 2));
  EXPECT_EQ(worker_.Run(Step(region_.id, kRegionBytes - 2 * kMemoryRowBytes)).at(1).draw().token(), 2u)
      << "its very end";
}

TEST_F(SessionMemory, UnknownForeignAndEndedRegionsAreRefused) {
  const std::string field = "step.logits.source.region.region_id";
  const auto other = Connect(engine_.get());
  const ClientRegion others(other.get(), kRegionBytes);
  ExpectRefused(Step(0, 0), Reason::kUnknownRegion, field);
  ExpectRefused(Step(region_.id + 1000, 0), Reason::kUnknownRegion, field);
  ExpectRefused(Step(others.id, 0), Reason::kUnknownRegion, field);
  ASSERT_EQ(connection_->Unregister(region_.id), std::nullopt);
  ExpectRefused(Step(region_.id, 0), Reason::kUnknownRegion, field);
  const ClientRegion next(connection_.get(), kRegionBytes);
  EXPECT_NE(next.id, region_.id);
  connection_->Close();
  ExpectRefused(Step(next.id, 0), Reason::kUnknownRegion, field);
}

TEST_F(SessionMemory, StreamWithoutConnectionHasNoRegions) {
  StreamWorker stranger(engine_.get());
  stranger.MustOpen(MakeOpen("c", 1, kMemoryVocabulary));
  const v1::StreamRequest request = Step(region_.id, 0);
  stranger.Send(request);
  ExpectError(stranger.StepError(request.step().batch_id()), Reason::kUnknownRegion,
              "step.logits.source.region.region_id");
  v1::StreamRequest guess;
  guess.mutable_attach_memory()->set_token(std::string(RegionTable::kTokenBytes, 'x'));
  stranger.Send(guess);
  ExpectError(stranger.Rejected().error(), Reason::kUnknownRegion, "attach_memory.token");
}

// Draft probabilities and masks that rows name are copied, so they fill the window as if they had been sent. Others are
// not copied: a step of 18 bytes once had 256 MB of them copied, and was refused then.
TEST(SessionMemoryInFlight, OnlyCopiedBytesFillTheWindow) {
  const auto with_drafts = [](uint64_t region_id) {
    StepBuilder builder(1, kMemoryVocabulary);
    v1::VerifyDraft& chain = *builder.AddRow("a", 1, 0, F32Peak(kMemoryVocabulary, 1) + F32Peak(kMemoryVocabulary, 2))
                                  .mutable_verify_draft();
    chain.add_draft_tokens(1);
    chain.set_mode(v1::VERIFY_MODE_REJECTION);
    chain.set_draft_row(0);
    v1::DraftTensor& drafts = *builder.step().mutable_draft_probabilities();
    drafts.set_dtype(v1::DTYPE_F32);
    drafts.set_rows(kRegionBytes / kMemoryRowBytes);
    SetRegion(region_id, 0, kRegionBytes, drafts.mutable_source());
    return builder.Build();
  };
  constexpr uint64_t kMaskBytes = kMemoryVocabulary / 8;
  const auto with_masks = [](uint64_t region_id) {
    StepBuilder builder(1, kMemoryVocabulary);
    builder.AddRow("a", 1, 0, F32Peak(kMemoryVocabulary, 1)).mutable_mask()->set_mask_row(0);
    builder.step().mutable_masks()->set_rows(kRegionBytes / kMaskBytes);
    SetRegion(region_id, 0, kRegionBytes, builder.step().mutable_masks()->mutable_source());
    return builder.Build();
  };
  constexpr uint64_t kFirstRegion = 1;
  for (const bool has_drafts : {true, false}) {
    for (const bool is_full : {true, false}) {
      const v1::StreamRequest request = has_drafts ? with_drafts(kFirstRegion) : with_masks(kFirstRegion);
      Limits limits;
      limits.stream_unanswered_bytes =
          request.ByteSizeLong() + (has_drafts ? kMemoryRowBytes : kMaskBytes) + (is_full ? 0 : 1);
      TestEngine engine = TestEngine::OnFake(limits);
      const auto connection = Connect(engine.get());
      ClientRegion region(connection.get(), kRegionBytes);
      ASSERT_EQ(region.id, kFirstRegion);
      std::vector<float> certain(kMemoryVocabulary);
      certain[1] = 1;
      region.Write(0, has_drafts ? testing::F32Bytes(certain) : std::string(kMaskBytes, '\xff'));
      StreamWorker worker(engine.get());
      worker.Send(Attach(*connection));
      worker.MustOpen(MakeOpen("a", 1, kMemoryVocabulary));
      worker.Send(request);
      EXPECT_EQ(worker.session().WantsFrames(), !is_full) << has_drafts;
      engine.fake().FinishAll();
      const v1::RowResult result = worker.Results(1, 1).at(0);
      EXPECT_EQ(has_drafts ? result.verify().accepted() : result.draw().token(), 1u) << result.ShortDebugString();
      EXPECT_TRUE(worker.IsIdle());
      EXPECT_TRUE(worker.session().WantsFrames());
    }
  }
}

TEST(SessionMemoryInFlight, DraftsOfTooMuchWorkAreRefusedUncopied) {
  constexpr uint32_t kWide = 1'000'000, kDrafts = 10;
  TestEngine engine = TestEngine::OnFake();
  const auto connection = Connect(engine.get());
  constexpr uint64_t kBytes = uint64_t{kDrafts} * kWide * sizeof(float);
  static_assert(price::kCopiedWord * kBytes / 4 > kMaxPieceWork);
  constexpr uint64_t kLogits = kBytes + kWide * sizeof(float);  // one more row
  ClientRegion region(connection.get(), kLogits);
  StreamWorker worker(engine.get());
  worker.Send(Attach(*connection));
  worker.MustOpen(MakeOpen("a", 1, kWide));
  StepBuilder builder(1, kWide);
  v1::VerifyDraft& chain = *builder.AddRow("a", 1, 0, "").mutable_verify_draft();
  for (uint32_t i = 0; i < kDrafts; ++i) chain.add_draft_tokens(i);
  chain.set_mode(v1::VERIFY_MODE_REJECTION);
  chain.set_draft_row(0);
  v1::DraftTensor& drafts = *builder.step().mutable_draft_probabilities();
  drafts.set_dtype(v1::DTYPE_F32);
  drafts.set_rows(kDrafts);
  SetRegion(region.id, 0, kBytes, drafts.mutable_source());
  v1::StreamRequest request = builder.Build();
  request.clear_payloads();
  SetRegion(region.id, 0, kLogits, request.mutable_step()->mutable_logits()->mutable_source());
  worker.Send(request);
  ExpectError(worker.Results(1, 1).at(0), Reason::kTooMany, "step.rows[0]");
}

TEST(SessionMemoryInFlight, RegionIsFreedWhenItsStepIsAnswered) {
  TestEngine engine = TestEngine::OnFake();
  const auto connection = Connect(engine.get());
  ClientRegion region(connection.get(), kRegionBytes);
  region.Write(0, F32Peak(kMemoryVocabulary, 5));
  StreamWorker worker(engine.get());
  worker.Send(Attach(*connection));
  worker.MustOpen(MakeOpen("a", 1, kMemoryVocabulary));
  StepBuilder builder(1, kMemoryVocabulary);
  builder.AddRow("a", 1, 0, "");
  v1::StreamRequest request = builder.Build();
  request.clear_payloads();
  SetRegion(region.id, 0, kMemoryRowBytes, request.mutable_step()->mutable_logits()->mutable_source());
  worker.Send(request);
  ASSERT_EQ(connection->Unregister(region.id), std::nullopt);
  EXPECT_TRUE(connection->TakeReleased().empty());
  EXPECT_EQ(engine->regions().use().regions, 1u);
  engine.fake().FinishAll();
  EXPECT_EQ(worker.Results(1, 1).at(0).draw().token(), 5u);
  EXPECT_THAT(connection->TakeReleased(), ::testing::ElementsAre(region.id));
  EXPECT_EQ(engine->regions().use().bytes, 0u);
}

// Every way through the kernels, over rows that another thread keeps changing: into numbers of all sizes, infinities
// and NaNs. Any answer will do, but there is one, its token is one of the vocabulary, and every row after it is right.
void SampleWhileScribbling(TestEngine engine) {
  constexpr uint32_t kWide = 5000;
  constexpr int kSequences = 6;
  const auto connection = Connect(engine.get());
  ClientRegion region(connection.get(), kSequences * kWide * sizeof(float));
  StreamWorker worker(engine.get());
  worker.Send(Attach(*connection));
  const auto name = [](int i) { return absl::StrCat("sequence-", i); };
  for (int i = 0; i < kSequences; ++i) {
    v1::OpenSequence open = MakeOpen(name(i), 1, kWide);
    v1::SamplingParameters& parameters = *open.mutable_parameters();
    parameters.mutable_raw_logprobs()->set_top(i % 2 == 0 ? 20 : 0);
    parameters.mutable_processed_logprobs()->set_top(i % 3 == 0 ? 20 : 0);
    if (i == 0) parameters.set_temperature(0);
    if (i == 1) parameters.set_top_p(0.95f);
    if (i == 2) parameters.set_min_p(0.01f);
    if (i == 3) parameters.set_top_k(40);
    if (i == 4) parameters.set_nan_policy(v1::NAN_POLICY_MASK);
    worker.MustOpen(open);
  }
  std::mt19937_64 random(7);
  std::string bytes;
  for (int i = 0; i < kSequences; ++i) bytes += RandomLogits(kernels::DType::kF32, kWide, &random);
  region.Write(0, bytes);

  std::atomic<bool> over = false;
  std::thread scribbler([&] {
    constexpr uint32_t kWords[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001,
                                   0x477fdfff, 0xc77fe000, 0,          0x41200000};
    auto* const words = reinterpret_cast<std::atomic<uint32_t>*>(region.data);
    std::mt19937_64 dice(11);
    while (!over.load(std::memory_order_relaxed)) {
      const uint64_t throw_of = dice();
      std::atomic<uint32_t>& word = words[throw_of % (kSequences * kWide)];
      // The bits that make a row unusable stay for a moment only, so that most rows pass the first check.
      if ((throw_of >> 40 & 7) == 0) word.store(kWords[throw_of >> 60 & 7], std::memory_order_relaxed);
      word.store(0x40000000u + uint32_t(throw_of >> 48 << 7), std::memory_order_relaxed);
    }
  });
  const uint64_t steps = testing::Scaled(300);
  uint64_t drawn = 0;
  for (uint64_t step = 1; step <= steps; ++step) {
    StepBuilder builder(step, kWide);
    for (int i = 0; i < kSequences; ++i) builder.AddRow(name(i), step, 0, "");
    v1::StreamRequest request = builder.Build();
    request.clear_payloads();
    SetRegion(region.id, 0, bytes.size(), request.mutable_step()->mutable_logits()->mutable_source());
    for (const v1::RowResult& row : worker.Run(request)) {
      drawn += row.has_draw();
      if (row.has_draw()) {
        EXPECT_LT(row.draw().token(), kWide);
      } else {
        EXPECT_THAT(row.error().reason(), ::testing::AnyOf(v1::LOGIT_NAN, v1::LOGIT_TOO_LARGE));
      }
    }
    worker.LetLeave();
  }
  over = true;
  scribbler.join();
  EXPECT_GT(drawn, 0u);

  region.Write(0, bytes);
  StepBuilder inline_step(steps + 1, kWide);
  StepBuilder shared_step(steps + 2, kWide);
  for (int i = 0; i < kSequences; ++i) {
    inline_step.AddRow(name(i), steps + 1, 0, bytes.substr(i * kWide * sizeof(float), kWide * sizeof(float)));
    shared_step.AddRow(name(i), steps + 2, 0, "");
  }
  v1::StreamRequest request = shared_step.Build();
  request.clear_payloads();
  SetRegion(region.id, 0, bytes.size(), request.mutable_step()->mutable_logits()->mutable_source());
  const auto expected = worker.Run(inline_step.Build());
  const auto results = worker.Run(request);
  for (int i = 0; i < kSequences; ++i) {
    EXPECT_EQ(results.at(i).draw().SerializeAsString(), expected.at(i).draw().SerializeAsString()) << i;
  }
}

TEST(SessionMemoryRewritten, RowsChangingDuringReadAreAnswered) { SampleWhileScribbling(TestEngine::OnCpu()); }

// A device is not found wrong because its rows changed after it had read them.
TEST(SessionMemoryRewritten, RecheckUsesBytesDeviceRead) {
  SampleWhileScribbling(TestEngine::OnCpu({}, 2, /*recheck_share=*/1));
}

}  // namespace
}  // namespace sortition::service::session_memory_test
