// Steps whose logits lie in a device's memory that their worker made: the same bits as from the stream, on every device
// that computes them, even if that memory is released or lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "devices/cpu/cpu_device.h"
#include "service/engine.h"
#include "service/wire/device_memory.h"
#include "tests/support/counting_observer.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_card_memory.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/stream_worker.h"

namespace sortition::service::session_device_memory_test {
namespace {

using devices::MemoryKind;
using testing::F32Peak;
using testing::FakeCardMemory;
using testing::FakeDevice;
using testing::MakeOpen;
using testing::StepBuilder;
using testing::StreamWorker;

constexpr uint32_t kVocabulary = 64;
constexpr uint64_t kRowBytes = kVocabulary * sizeof(float);
constexpr uint64_t kMostDeviceBytes = 3 * 4096;
constexpr char kLogits[] = "step.logits.source.region";

Limits DeviceLimits() {
  Limits limits;
  limits.connection_device_bytes = kMostDeviceBytes;
  limits.connection_regions = 3;
  return limits;
}

FakeDevice::Options Card() {
  return {.name = "card", .memory = 1, .identity = FakeCardMemory::Identity(), .synchronous = true};
}

// Counts the rows that devices have been given and have not given back.
class BookKeeper : public testing::CountingObserver {
 public:
  void BatchStarted(std::string_view, uint32_t rows, RouteReason) override { given += rows; }
  void BatchDone(std::string_view device, uint32_t rows, absl::Duration wait, absl::Duration kernel) override {
    given -= rows;
    CountingObserver::BatchDone(device, rows, wait, kernel);
  }
  std::atomic<int64_t> given = 0;
};

// A card that takes memory, the processor, and a worker with its rows on the card.
struct Host {
  explicit Host(FakeDevice::Options card_options = Card(), const std::string& pinned = "card",
                double recheck_share = 0) {
    Engine::Options options;
    options.limits = DeviceLimits();
    auto owned = std::make_unique<FakeDevice>(std::move(card_options));
    card = owned.get();
    options.devices.push_back(std::move(owned));
    options.devices.push_back(std::make_unique<devices::CpuDevice>(devices::CpuDeviceOptions{.threads = 1}));
    options.clock = &clock;
    options.observer = &observer;
    options.recheck_share = recheck_share;
    options.route = {.pinned = pinned};
    engine = std::make_unique<Engine>(std::move(options));
    connection = std::get<std::shared_ptr<MemoryConnection>>(engine->regions().Connect([] {}));
    worker = std::make_unique<StreamWorker>(engine.get());
    v1::StreamRequest attach;
    attach.mutable_attach_memory()->set_token(connection->token());
    worker->Send(attach);
    worker->MustOpen(MakeOpen("a", 1, kVocabulary));
    worker->MustOpen(MakeOpen("b", 1, kVocabulary));
  }
  ~Host() {
    card->FinishAll();
    worker.reset();
  }

  uint64_t Register() { return std::get<uint64_t>(connection->Import(card, memory.handle())); }
  Refusal Refused(const devices::MemoryHandle& handle) { return std::get<Refusal>(connection->Import(card, handle)); }
  // A step of rows "a" and "b" with logits at `offset`.
  v1::StreamRequest Step(uint64_t region, uint64_t offset) {
    StepBuilder builder(++batch, kVocabulary);
    builder.AddRow("a", batch, 0, "");
    builder.AddRow("b", batch, 0, "");
    v1::StreamRequest request = builder.Build();
    request.clear_payloads();
    Place(region, offset, 2 * kRowBytes, request.mutable_step()->mutable_logits()->mutable_source());
    return request;
  }
  static void Place(uint64_t region, uint64_t offset, uint64_t length, v1::TensorSource* source) {
    source->mutable_region()->set_region_id(region);
    source->mutable_region()->set_offset(offset);
    source->mutable_region()->set_length(length);
  }
  void Write(uint64_t offset, const std::string& rows) {
    std::memcpy(memory.data() + offset, rows.data(), rows.size());
  }
  void ExpectRefused(const v1::StreamRequest& request, Reason reason, const std::string& field) {
    worker->Send(request);
    ExpectError(worker->StepError(request.step().batch_id()), reason, field);
  }

  testing::FakeClock clock;
  BookKeeper observer;
  FakeCardMemory memory{4096};
  FakeDevice* card = nullptr;  // owned by the engine
  std::unique_ptr<Engine> engine;
  std::shared_ptr<MemoryConnection> connection;
  std::unique_ptr<StreamWorker> worker;
  uint64_t batch = 0;
};

// On the card's memory every row that the card gets was never touched by the host: it names the worker's own bytes.
TEST(SessionDeviceMemory, LogitsAreSampledInPlace) {
  std::vector<const std::byte*> sampled;
  FakeDevice::Options options = Card();
  options.sample = [&](const devices::DeviceRow& row) {
    EXPECT_TRUE(row.may_change);
    EXPECT_EQ(row.memory, 1u);
    sampled.push_back(row.imported->bytes().data() + 512);
    EXPECT_EQ(row.segments.front().data, sampled.back() + (sampled.size() - 1) * kRowBytes);
    return testing::SampleByReference(row);
  };
  Host host(options);
  const uint64_t region = host.Register();
  host.Write(512, F32Peak(kVocabulary, 7) + F32Peak(kVocabulary, 63));
  const auto results = host.worker->Run(host.Step(region, 512));
  EXPECT_EQ(results.at(0).draw().token(), 7u);
  EXPECT_EQ(results.at(1).draw().token(), 63u);
  EXPECT_EQ(sampled.size(), 2u);
}

// Rows of a device that is busy, or out of service, are read by its driver for another one.
TEST(SessionDeviceMemory, RowsRunningElsewhereAreRead) {
  Host host(Card(), "cpu0");
  const uint64_t region = host.Register();
  host.Write(0, F32Peak(kVocabulary, 7) + F32Peak(kVocabulary, 63));
  const auto results = host.worker->Run(host.Step(region, 0));
  EXPECT_EQ(results.at(0).draw().token(), 7u);
  EXPECT_EQ(results.at(1).draw().token(), 63u);
}

// Drivers take their time, so no thread that serves streams reads.
TEST(SessionDeviceMemory, ReadingBlocksNoStream) {
  absl::Notification sent;
  FakeDevice::Options options = Card();
  options.read = [&] {
    const bool went_on = sent.WaitForNotificationWithTimeout(absl::Seconds(20));
    return went_on ? absl::OkStatus() : absl::UnavailableError("the stream waits for the driver");
  };
  Host host(options, "cpu0");
  host.Write(0, F32Peak(kVocabulary, 7) + F32Peak(kVocabulary, 63));
  host.worker->Send(host.Step(host.Register(), 0));
  sent.Notify();
  const auto results = host.worker->Results(1, 2);
  EXPECT_EQ(results.at(0).draw().token(), 7u) << results.at(0).ShortDebugString();
  EXPECT_EQ(results.at(1).draw().token(), 63u);
}

// After a driver has failed to read, the next waiting task runs.
TEST(SessionDeviceMemory, FailedReadingLetsOthersRun) {
  FakeDevice::Options options = Card();
  options.read = [] { return absl::UnavailableError("the card is gone"); };
  Host host(options, "cpu0");
  const uint64_t region = host.Register();
  for (int i = 0; i < 50; ++i) host.worker->Send(host.Step(region, 0));
  for (uint64_t batch = 1; batch <= 50; ++batch) {
    for (const v1::RowResult& result : host.worker->Results(batch, 2)) {
      ExpectError(result.error(), Reason::kDeviceFailed, "");
    }
  }
}

// If the logits cannot be read, the rows fail by name, and their sequences take the same step with logits from
// elsewhere.
TEST(SessionDeviceMemory, LostMemoryFailsRowKeepsSequence) {
  FakeDevice::Options options = Card();
  options.read = [] { return absl::UnavailableError("the card is gone"); };
  Host host(options, "cpu0");
  const v1::StreamRequest step = host.Step(host.Register(), 0);
  const auto results = host.worker->Run(step);
  for (const v1::RowResult& result : results) {
    ExpectError(result.error(), Reason::kDeviceFailed, "");
    EXPECT_EQ(result.error().message(), "the card is gone");
    EXPECT_TRUE(result.error().has_retry_after());
  }
  StepBuilder again(++host.batch, kVocabulary);
  again.AddRow("a", 1, 0, F32Peak(kVocabulary, 9));
  EXPECT_EQ(host.worker->Run(again.Build()).at(0).draw().token(), 9u);
}

// The worker may write the memory at any time, so the re-check compares outputs of one reading.
TEST(SessionDeviceMemory, RecheckedRowsAreReadOnce) {
  std::unique_ptr<Host> host;
  FakeDevice::Options options = Card();
  options.sample = [&](const devices::DeviceRow& row) {
    const kernels::RowOutput answer = testing::SampleByReference(row);
    host->Write(0, F32Peak(kVocabulary, 1) + F32Peak(kVocabulary, 1));
    return answer;
  };
  host = std::make_unique<Host>(options, "card", 1);
  const uint64_t region = host->Register();
  host->Write(0, F32Peak(kVocabulary, 7) + F32Peak(kVocabulary, 63));
  const auto results = host->worker->Run(host->Step(region, 0));
  EXPECT_EQ(results.at(0).draw().token(), 7u);
  EXPECT_EQ(results.at(1).draw().token(), 63u);
}

// Rows that leave a batch because they cannot be read for a re-check are not counted among those that their device
// returns. Half of the 40 rows are re-checked: all or none with probability 2^-39.
TEST(SessionDeviceMemory, RowsLeavingABatchAreUncounted) {
  constexpr uint32_t kRows = 40;
  FakeDevice::Options options = Card();
  options.read = [] { return absl::UnavailableError("the card is gone"); };
  Host host(options, "card", 0.5);
  StepBuilder builder(++host.batch, kVocabulary);
  for (uint32_t i = 0; i < kRows; ++i) {
    host.worker->MustOpen(MakeOpen(absl::StrCat("r", i), 1, kVocabulary));
    builder.AddRow(absl::StrCat("r", i), 1, 0, "").set_tensor_row(0);
  }
  builder.step().mutable_logits()->set_tensor_rows(1);
  v1::StreamRequest step = builder.Build();
  step.clear_payloads();
  Host::Place(host.Register(), 0, kRowBytes, step.mutable_step()->mutable_logits()->mutable_source());
  const std::vector<v1::RowResult> results = host.worker->Run(step);
  ASSERT_EQ(results.size(), kRows);
  const auto failed = std::ranges::count_if(results, [](const v1::RowResult& row) { return row.has_error(); });
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, ptrdiff_t{kRows});
  EXPECT_EQ(host.observer.given, 0);
}

TEST(SessionDeviceMemory, OnlyWholeRowsOfLogitsAreTaken) {
  Host host;
  const uint64_t region = host.Register();
  v1::StreamRequest masks = host.Step(region, 0);
  masks.mutable_step()->mutable_masks()->set_rows(1);
  Host::Place(region, 1024, 8, masks.mutable_step()->mutable_masks()->mutable_source());
  host.ExpectRefused(masks, Reason::kOutOfRange, "step.masks.source.region.region_id");

  v1::StreamRequest drafts = host.Step(region, 0);
  drafts.mutable_step()->mutable_draft_probabilities()->set_rows(1);
  drafts.mutable_step()->mutable_draft_probabilities()->set_dtype(v1::DTYPE_F32);
  Host::Place(region, 1024, kRowBytes, drafts.mutable_step()->mutable_draft_probabilities()->mutable_source());
  host.ExpectRefused(drafts, Reason::kOutOfRange, "step.draft_probabilities.source.region.region_id");

  v1::StreamRequest step = host.Step(region, 0);
  v1::VocabularyShard& shard = *step.mutable_step()->mutable_logits()->mutable_shard();
  shard.set_count(2);
  shard.set_total_vocabulary_size(2 * kVocabulary);
  host.ExpectRefused(step, Reason::kNotImplemented, kLogits);

  v1::StreamRequest upload;
  upload.mutable_upload_mask()->set_mask_id(5);
  upload.mutable_upload_mask()->set_vocabulary_size(kVocabulary);
  upload.mutable_upload_mask()->mutable_mask()->set_rows(1);
  Host::Place(region, 0, 8, upload.mutable_upload_mask()->mutable_mask()->mutable_source());
  host.worker->Send(upload);
  const auto answer = host.worker->Await([](const auto& message) { return message.has_mask_uploaded(); });
  ExpectError(answer->mask_uploaded().error(), Reason::kOutOfRange, "upload_mask.mask.source.region.region_id");
}

TEST(SessionDeviceMemory, RangesAndRegionsAreValidated) {
  Host host;
  const uint64_t region = host.Register();
  host.ExpectRefused(host.Step(region, 4096 - 2 * kRowBytes + 4), Reason::kOutOfRange, kLogits);
  host.ExpectRefused(host.Step(region, ~uint64_t{0} - 3), Reason::kOutOfRange, kLogits);
  host.ExpectRefused(host.Step(region, 2), Reason::kOutOfRange, std::string(kLogits) + ".offset");
  host.ExpectRefused(host.Step(region + 1, 0), Reason::kUnknownRegion, std::string(kLogits) + ".region_id");
  ASSERT_EQ(host.connection->Unregister(region), std::nullopt);
  host.ExpectRefused(host.Step(region, 0), Reason::kUnknownRegion, std::string(kLogits) + ".region_id");
}

// The worker dies while its rows wait: the memory that the card reads stays mapped until it has answered.
TEST(SessionDeviceMemory, MemoryStaysUntilRowsAreAnswered) {
  FakeDevice::Options options = Card();
  options.synchronous = false;
  Host host(options);
  const uint64_t region = host.Register();
  host.Write(0, F32Peak(kVocabulary, 7) + F32Peak(kVocabulary, 63));
  const v1::StreamRequest step = host.Step(region, 0);
  host.worker->Send(step);
  ASSERT_EQ(host.card->held(), 1u);
  host.connection->Close();
  EXPECT_EQ(host.engine->regions().use().regions, 1u);
  host.card->Finish();
  const auto results = host.worker->Results(step.step().batch_id(), 2);
  EXPECT_EQ(results.at(1).draw().token(), 63u);
  host.worker->LetLeave();
  EXPECT_EQ(host.engine->regions().use().regions, 0u);
}

TEST(DeviceRegions, QuotasHoldAndAreReleased) {
  Host host;
  EXPECT_EQ(host.Refused({MemoryKind::kCuda, 0, 0, 0}).field, "register_device_region.bytes");
  EXPECT_EQ(host.Refused({MemoryKind::kCuda, 0, kMostDeviceBytes + 1, 0}).reason, Reason::kOutOfRange);
  const uint64_t first = host.Register();
  host.Register();
  EXPECT_EQ(host.engine->regions().use().bytes, 0u) << "none of the host's memory";
  const FakeCardMemory large(8192);
  EXPECT_EQ(host.Refused(large.handle()).reason, Reason::kOverloaded) << "of the connection's bytes";
  host.Register();
  EXPECT_EQ(host.Refused(host.memory.handle()).reason, Reason::kOverloaded) << "of the connection's regions";
  ASSERT_EQ(host.connection->Unregister(first), std::nullopt);
  EXPECT_EQ(host.connection->TakeReleased(), std::vector<uint64_t>{first});
  host.Register();
  host.connection->Close();
  EXPECT_EQ(host.engine->regions().use().regions, 0u);
}

TEST(DeviceRegions, DriversRefusalCountsNothing) {
  Host host;
  for (int i = 0; i < 10; ++i) {
    const Refusal refusal = host.Refused({MemoryKind::kCuda, host.memory.handle().descriptor, 8192, 0});
    EXPECT_EQ(refusal.reason, Reason::kOutOfRange);
    EXPECT_EQ(refusal.message, "card: no memory of this size");
  }
  host.Register();
  EXPECT_EQ(host.engine->regions().use().regions, 1u);
}

TEST(DeviceRegions, InvalidRequestsAreRefusedByName) {
  v1::RegisterDeviceRegion request;
  const auto refused = [&](int descriptor) { return std::get<Refusal>(ParseDeviceRegion(request, descriptor)); };
  EXPECT_EQ(refused(3).field, "register_device_region.device.kind");
  EncodeIdentity(FakeCardMemory::Identity(), request.mutable_device());
  EXPECT_EQ(refused(-1).reason, Reason::kMissingField);
  request.set_vulkan_memory_type(1);
  EXPECT_EQ(refused(3).field, "register_device_region.vulkan_memory_type");
  const devices::MemoryIdentity vulkan = {MemoryKind::kVulkan, "device", "driver"};
  EncodeIdentity(vulkan, request.mutable_device());
  request.set_bytes(4096);
  const auto parsed = std::get<DeviceRegionRequest>(ParseDeviceRegion(request, 3));
  EXPECT_EQ(parsed.identity, vulkan);
  EXPECT_EQ(parsed.handle.kind, MemoryKind::kVulkan);
  EXPECT_EQ(parsed.handle.descriptor, 3);
  EXPECT_EQ(parsed.handle.bytes, 4096u);
  EXPECT_EQ(parsed.handle.memory_type, 1u);
}

}  // namespace
}  // namespace sortition::service::session_device_memory_test
