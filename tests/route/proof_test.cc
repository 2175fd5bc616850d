// What a device must show before it serves.
#include "devices/proof/proof.h"

#include <gtest/gtest.h>

#include "devices/cpu/cpu_device.h"
#include "tests/support/fake_device.h"

namespace sortition::devices {
namespace {

using testing::FakeDevice;

const Proof& FullProof() {
  static const Proof& proof = *new Proof();
  return proof;
}

TEST(Proof, TheCpuPasses) {
  CpuDevice device({.threads = 2});
  const Proof::Verdict verdict = FullProof().Run(&device, absl::Minutes(1));
  EXPECT_TRUE(verdict.status.ok()) << verdict.status;
  EXPECT_GE(verdict.rows, law::KnownRows().size());
  ASSERT_EQ(verdict.timings.size(), 3u);
  EXPECT_EQ(verdict.timings[0].rows, 1u);
  EXPECT_EQ(verdict.timings[2].rows, 16u);
  EXPECT_EQ(verdict.timings[2].bytes, 16u * 2 * 128256);
  EXPECT_GT(verdict.timings[2].time, absl::ZeroDuration());
}

// Any bit of any answer: the last one's sum of weights, here.
TEST(Proof, OneWrongBitIsNoPass) {
  CpuDevice cpu({.threads = 1});
  uint32_t row = 0;
  FakeDevice::Options options;
  options.max_batch_rows = 3;
  options.synchronous = true;
  options.sample = [&](const DeviceRow& device_row) {
    kernels::RowAnswer answer = testing::SampleByReference(device_row);
    if (++row == 18) answer.token ^= 1;
    return answer;
  };
  FakeDevice device(options);
  const Proof::Verdict verdict = FullProof().Run(&device, absl::Minutes(1));
  EXPECT_TRUE(absl::IsDataLoss(verdict.status));
  EXPECT_EQ(verdict.status.message(), "wrong answer to the known row \"allowed tokens and bits\"");
  EXPECT_EQ(verdict.rows, 15u);
  EXPECT_EQ(row, 18u) << "nothing more is asked of it";
}

TEST(Proof, ADeviceIsAskedForWhatItIsAbleTo) {
  FakeDevice::Options options;
  options.max_vocabulary = 6;
  options.synchronous = true;
  options.max_batch_rows = 100;
  FakeDevice device(options);
  const Proof::Verdict verdict = FullProof().Run(&device, absl::Minutes(1));
  EXPECT_TRUE(verdict.status.ok()) << verdict.status;
  EXPECT_GE(verdict.rows, 15u);
}

TEST(Proof, ADeviceThatFailsOrDoesNotAnswerIsNotProved) {
  FakeDevice device({.max_batch_rows = 100});
  absl::Status status;
  FullProof().Start(&device, [&](const Proof::Verdict& verdict) { status = verdict.status; });
  device.Fail(absl::UnavailableError("lost"));
  EXPECT_EQ(status, absl::UnavailableError("lost"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(FullProof().Run(&device, absl::Milliseconds(1)).status));
  device.Fail(absl::UnavailableError("lost"));
}

}  // namespace
}  // namespace sortition::devices
