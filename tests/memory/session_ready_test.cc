// Steps that are sent before their logits are done, and wait for a word of shared memory that says so.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/memory/memory_fixture.h"
#include "tests/support/scale.h"

namespace sortition::service::session_ready_test {
namespace {

using testing::F32Peak;
using testing::MakeOpen;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

class SessionReady : public SessionMemory {
 protected:
  static constexpr uint64_t kWord = 1024;

  // Builds a step that waits until the word has reached `value`.
  v1::StreamRequest EarlyStep(uint32_t value, uint64_t word = kWord) {
    v1::StreamRequest request = Step(region_.id, 0);
    v1::ReadyWord& ready = *request.mutable_step()->mutable_logits()->mutable_ready();
    ready.set_region_id(region_.id);
    ready.set_offset(word);
    ready.set_value(value);
    return request;
  }
  void SetWord(uint32_t value) {
    std::atomic_ref(*reinterpret_cast<uint32_t*>(region_.data + kWord)).store(value, std::memory_order_release);
  }
  void WriteRows() { region_.Write(0, F32Peak(kMemoryVocabulary, 7) + F32Peak(kMemoryVocabulary, 63)); }
  void AwaitNone() {
    while (engine_->unready_steps().count() > 0) std::this_thread::yield();
  }
};

TEST_F(SessionReady, LogitsArrivingAfterStepAreSampled) {
  const v1::StreamRequest request = EarlyStep(1);
  worker_.Send(request);
  ASSERT_EQ(engine_->unready_steps().count(), 1u);
  WriteRows();
  engine_.clock().Advance(absl::Milliseconds(20));
  SetWord(1);
  const auto results = worker_.Results(request.step().batch_id(), 2);
  EXPECT_EQ(results.at(0).draw().token(), 7u);
  EXPECT_EQ(results.at(1).draw().token(), 63u);
  // The worker's time is not the service's.
  EXPECT_THAT(engine_.observer().latencies(), ::testing::ElementsAre(absl::ZeroDuration()));
  EXPECT_THAT(engine_.observer().ready_waits(), ::testing::ElementsAre(absl::Milliseconds(20)));
}

TEST_F(SessionReady, OneWordCountsStepsAcrossWraparound) {
  WriteRows();
  SetWord(0xffffffff);
  for (const uint32_t value : {0x80000001u, 0xfffffffeu, 0xffffffffu})
    EXPECT_TRUE(worker_.Run(EarlyStep(value))[0].has_draw());
  const v1::StreamRequest request = EarlyStep(3);
  worker_.Send(request);
  EXPECT_EQ(engine_->unready_steps().count(), 1u);
  SetWord(4);
  EXPECT_TRUE(worker_.Results(request.step().batch_id(), 2)[0].has_draw());
}

TEST_F(SessionReady, MissingLogitsAreNamedNothingIsLost) {
  v1::StreamRequest request = EarlyStep(1);
  request.mutable_step()->mutable_timeout()->set_nanos(300'000'000);
  worker_.Send(request);
  engine_.clock().Advance(absl::Milliseconds(300));
  for (const v1::RowResult& row : worker_.Results(request.step().batch_id(), 2)) {
    ExpectError(row.error(), Reason::kDeadlinePassed, "step.logits.ready");
    EXPECT_THAT(row.error().message(), ::testing::HasSubstr("is 0, and not 1 yet"));
  }
  // The same step without a timeout waits for ready_wait.
  request.mutable_step()->clear_timeout();
  request.mutable_step()->set_batch_id(++batch_);
  worker_.Send(request);
  WriteRows();
  SetWord(1);
  EXPECT_EQ(worker_.Results(batch_, 2)[1].draw().token(), 63u);
  worker_.Send(EarlyStep(2));
  engine_.clock().Advance(engine_->limits().ready_wait);
  for (const v1::RowResult& row : worker_.Results(batch_, 2)) {
    ExpectError(row.error(), Reason::kDeadlinePassed, "step.logits.ready");
    EXPECT_EQ(row.error().limit(), "ready_wait 10000");
  }
}

TEST_F(SessionReady, CancelledStepStopsWaiting) {
  const v1::StreamRequest request = EarlyStep(1);
  worker_.Send(request);
  v1::StreamRequest cancel;
  cancel.mutable_cancel()->set_batch_id(request.step().batch_id());
  worker_.Send(cancel);
  for (const v1::RowResult& row : worker_.Results(request.step().batch_id(), 2)) {
    ExpectError(row.error(), Reason::kStepCancelled, "");
  }
}

TEST_F(SessionReady, DeadWorkerLeavesNothingBehind) {
  {
    StreamWorker other(engine_.get(), {.worker_session = "other"});
    other.Send(Attach(*connection_));
    other.MustOpen(MakeOpen("a", 1, kMemoryVocabulary));
    other.MustOpen(MakeOpen("b", 1, kMemoryVocabulary));
    other.Send(EarlyStep(1));
    ASSERT_EQ(engine_->unready_steps().count(), 1u);
  }
  AwaitNone();
  WriteRows();
  EXPECT_TRUE(worker_.Run(Step(region_.id, 0))[0].has_draw());
}

TEST_F(SessionReady, RegionStaysUntilItsStepsEnd) {
  const v1::StreamRequest request = EarlyStep(1);
  worker_.Send(request);
  connection_->Unregister(region_.id);
  EXPECT_TRUE(connection_->TakeReleased().empty());
  WriteRows();
  SetWord(1);
  EXPECT_TRUE(worker_.Results(request.step().batch_id(), 2)[0].has_draw());
}

TEST_F(SessionReady, MistakesAreNamed) {
  ExpectRefused(EarlyStep(1, kRegionBytes - 3), Reason::kOutOfRange, "step.logits.ready");
  ExpectRefused(EarlyStep(1, UINT64_MAX - 3), Reason::kOutOfRange, "step.logits.ready");
  ExpectRefused(EarlyStep(1, kWord + 2), Reason::kOutOfRange, "step.logits.ready.offset");
  v1::StreamRequest request = EarlyStep(1);
  request.mutable_step()->mutable_logits()->mutable_ready()->set_region_id(region_.id + 1);
  ExpectRefused(request, Reason::kUnknownRegion, "step.logits.ready.region_id");
  StepBuilder inline_rows(++batch_, kMemoryVocabulary);
  inline_rows.AddRow("a", batch_, 0, F32Peak(kMemoryVocabulary, 7));
  request = inline_rows.Build();
  *request.mutable_step()->mutable_logits()->mutable_ready() = EarlyStep(1).step().logits().ready();
  request.mutable_step()->set_batch_id(++batch_);
  ExpectRefused(request, Reason::kContradiction, "step.logits.ready");
}

TEST(SessionReadyLimits, WaitingStepsBeyondLimitAreRefused) {
  Limits limits;
  limits.max_unready_steps = 1;
  TestEngine engine = TestEngine::OnCpu(limits);
  const auto connection = Connect(engine.get());
  ClientRegion region(connection.get(), kRegionBytes);
  StreamWorker worker(engine.get());
  worker.Send(Attach(*connection));
  for (const char* name : {"a", "b"}) worker.MustOpen(MakeOpen(name, 1, kMemoryVocabulary));
  const auto early = [&](uint64_t batch, const char* name) {
    StepBuilder builder(batch, kMemoryVocabulary);
    builder.AddRow(name, 1, 0, "");
    v1::StreamRequest request = builder.Build();
    request.clear_payloads();
    SetRegion(region.id, 0, kMemoryRowBytes, request.mutable_step()->mutable_logits()->mutable_source());
    request.mutable_step()->mutable_logits()->mutable_ready()->set_region_id(region.id);
    request.mutable_step()->mutable_logits()->mutable_ready()->set_offset(1024);
    request.mutable_step()->mutable_logits()->mutable_ready()->set_value(1);
    return request;
  };
  worker.Send(early(1, "a"));
  worker.Send(early(2, "b"));
  const v1::Error error = worker.StepError(2);
  ExpectError(error, Reason::kOverloaded, "step.logits.ready");
  EXPECT_EQ(error.limit(), "max_unready_steps 1");
  region.Write(0, F32Peak(kMemoryVocabulary, 7));
  std::atomic_ref(*reinterpret_cast<uint32_t*>(region.data + 1024)).store(1, std::memory_order_release);
  EXPECT_EQ(worker.Results(1, 1)[0].draw().token(), 7u);
  EXPECT_EQ(worker.Run(early(3, "b"))[0].draw().token(), 7u);
}

}  // namespace
}  // namespace sortition::service::session_ready_test
