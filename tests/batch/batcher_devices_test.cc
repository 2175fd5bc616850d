// Which device takes which rows, that none idles while rows wait, and rows whose device fails.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/batch/batcher_fixture.h"

namespace sortition::service::batcher_devices_test {
namespace {

using testing::FakeDevice;
using Positions = std::vector<uint32_t>;

// Parameters that need a feature.
const kernels::RowParameters kChained = [] {
  kernels::RowParameters parameters;
  parameters.chain = {{kernels::StageKind::kPLess}};
  return parameters;
}();

TEST_F(BatcherTest, DeviceFailureFailsItsRowsAlone) {
  FakeDevice& device = AddDevice({.max_batch_rows = 4});
  const auto first = Submit(0, 2);
  const auto second = Submit(10, 2);
  device.Fail(absl::InternalError("out of order"));
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(first->WhyNot(i).reason, Reason::kDeviceFailed);
    EXPECT_EQ(first->WhyNot(i).message, "out of order");
    EXPECT_GT(first->WhyNot(i).retry_after, absl::ZeroDuration());
  }
  device.FinishAll();
  EXPECT_EQ(second->Token(1), 11u);
}

TEST_F(BatcherTest, RowsOfAFailedBatchRunOnAnotherDevice) {
  FakeDevice& a = AddDevice({.name = "a", .max_batch_rows = 2});
  FakeDevice& b = AddDevice({.name = "b", .max_batch_rows = 4});
  const auto step = Submit(0, 8);
  a.Fail(absl::InternalError("out of order"));
  EXPECT_EQ(step->delivered(), 0u);
  EXPECT_EQ(a.Positions(0), (Positions{0, 1})) << "before those that have not run yet";
  b.FinishAll();
  a.FinishAll();
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(step->Token(i), i);
}

TEST_F(BatcherTest, RowFailedByManyDevicesIsRefused) {
  FakeDevice& a = AddDevice({.name = "a"});
  FakeDevice& b = AddDevice({.name = "b"});
  const auto step = Submit(0, 1);
  for (uint32_t attempt = 0; attempt < Batcher::kMostAttempts; ++attempt) {
    EXPECT_EQ(step->delivered(), 0u);
    (a.held() != 0 ? a : b).Fail(absl::InternalError("out of order"));
  }
  EXPECT_EQ(step->WhyNot(0).reason, Reason::kDeviceFailed);
}

// After a failed batch, or a batch with only refused rows, a device takes the next one.
TEST_F(BatcherTest, DeviceServesAfterFailureAndRefusals) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  Submit(0, 1);
  const auto cancelled = Submit(10, 4);
  const auto last = Submit(20, 1);
  cancelled->Cancel();
  device.Fail(absl::UnavailableError("gone"));
  ASSERT_EQ(device.held(), 1u);
  EXPECT_EQ(device.Positions(0), Positions{20});
  device.Finish();
  EXPECT_EQ(last->Token(0), 20u);
}

TEST_F(BatcherTest, RowsGoToCapableDevices) {
  FakeDevice& small = AddDevice({.name = "small", .max_vocabulary = 100});
  FakeDevice& large = AddDevice({.name = "large"});
  std::vector<QueuedRow> rows = RowsAt(0, 6);
  for (uint32_t i = 0; i < 6; ++i) rows[i].row.request.live_vocabulary = i % 2 == 0 ? 100 : 101;
  const auto first = Submit(10, 1);
  const auto second = Submit(11, 1);
  const auto step = SubmitRows(std::move(rows));
  small.Finish();
  EXPECT_EQ(small.Positions(0), (Positions{0, 2, 4}));
  large.Finish();
  EXPECT_EQ(large.Positions(0), (Positions{1, 3, 5}));
  small.FinishAll();
  large.FinishAll();
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(step->Token(i), i);
}

TEST_F(BatcherTest, RowsGoToDevicesWithTheirFeatures) {
  FakeDevice& plain = AddDevice({.name = "plain", .features = kernels::kNoFeatures});
  FakeDevice& full = AddDevice({.name = "full"});
  std::vector<QueuedRow> rows = RowsAt(0, 4);
  for (uint32_t i = 1; i < 4; i += 2) rows[i].row.request.parameters = &kChained;
  const auto first = Submit(10, 1);
  const auto second = Submit(11, 1);
  const auto step = SubmitRows(std::move(rows));
  plain.Finish();
  EXPECT_EQ(plain.Positions(0), (Positions{0, 2}));
  full.Finish();
  EXPECT_EQ(full.Positions(0), (Positions{1, 3}));
}

TEST_F(BatcherTest, RowsWaitingForDeviceBlockNoOthers) {
  FakeDevice& full = AddDevice({.name = "full"});
  FakeDevice& plain = AddDevice({.name = "plain", .features = kernels::kNoFeatures});
  std::vector<QueuedRow> rows = RowsAt(0, 3);
  for (QueuedRow& row : rows) row.row.request.parameters = &kChained;
  ASSERT_FALSE(batcher().Submit(Step(), RowsAt(9, 1)).has_value());
  const auto step = SubmitRows(std::move(rows));
  EXPECT_EQ(plain.held(), 0u);
  Submit(20, 2);
  EXPECT_EQ(plain.Positions(0), (Positions{20, 21})) << "younger rows, and their device is idle";
  full.Finish();
  EXPECT_EQ(full.Positions(0), (Positions{0, 1, 2}));
}

TEST_F(BatcherTest, RowsOfTwoMemoriesShareNoBatch) {
  FakeDevice& device = AddDevice({});
  Submit(9, 1);
  std::vector<QueuedRow> rows = RowsAt(0, 6);
  for (const size_t there : {1, 2, 5}) rows[there].row.memory = 1;
  const auto step = SubmitRows(std::move(rows));
  device.Finish();
  EXPECT_EQ(device.Positions(0), (Positions{0, 3, 4}));
  device.Finish();
  EXPECT_EQ(device.Positions(0), (Positions{1, 2, 5}));
  device.Finish();
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(step->Token(i), i);
}

TEST_F(BatcherTest, RowNoDeviceCanTakeIsRefused) {
  AddDevice({.max_vocabulary = 100});
  std::vector<QueuedRow> rows = RowsAt(0, 1);
  rows[0].row.request.live_vocabulary = 101;
  const auto step = SubmitRows(std::move(rows));
  EXPECT_EQ(step->WhyNot(0).reason, Reason::kDeviceFailed);
  EXPECT_EQ(batcher().queued_rows(), 0u);
}

TEST_F(BatcherTest, SeveralDevicesShare) {
  FakeDevice& a = AddDevice({.name = "a", .max_batch_rows = 2});
  FakeDevice& b = AddDevice({.name = "b", .max_batch_rows = 3});
  const auto step = Submit(0, 8);
  EXPECT_EQ(a.Positions(0), (Positions{0, 1}));
  EXPECT_EQ(b.Positions(0), (Positions{2, 3, 4}));
  b.Finish();
  EXPECT_EQ(b.Positions(0), (Positions{5, 6, 7}));
  a.FinishAll();
  b.FinishAll();
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(step->Token(i), i);
}

TEST_F(BatcherTest, NoDeviceIdlesWhileRowsWait) {
  FakeDevice& a = AddDevice({.name = "a", .max_batch_rows = 1});
  FakeDevice& b = AddDevice({.name = "b", .max_batch_rows = 1, .batches_in_flight = 2});
  for (uint32_t i = 0; i < 20; ++i) Submit(i, 1);
  for (uint32_t left = 17; left > 0; --left) {
    EXPECT_EQ(a.held(), 1u);
    EXPECT_EQ(b.held(), 2u);
    EXPECT_EQ(batcher().queued_rows(), left);
    (left % 2 == 0 ? a : b).Finish();
  }
  a.FinishAll();
  b.FinishAll();
}

}  // namespace
}  // namespace sortition::service::batcher_devices_test
