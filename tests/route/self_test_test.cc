// Self-tests of devices.
#include "devices/self_test/self_test.h"

#include <gtest/gtest.h>

#include <map>

#include "devices/cpu/cpu_device.h"
#include "tests/support/fake_device.h"

namespace sortition::devices::self_test_test {
namespace {

using testing::FakeDevice;

const SelfTest& FullSelfTest() {
  static const SelfTest& self_test = *new SelfTest();
  return self_test;
}

TEST(SelfTest, CpuPasses) {
  CpuDevice device({.threads = 2});
  const SelfTest::Verdict verdict = FullSelfTest().Run(&device, absl::Minutes(1));
  EXPECT_TRUE(verdict.status.ok()) << verdict.status;
  EXPECT_GE(verdict.rows, law::GoldenRows().size());
  ASSERT_EQ(verdict.timings.size(), 3u);
  EXPECT_EQ(verdict.timings[0].rows, 1u);
  EXPECT_EQ(verdict.timings[2].rows, 16u);
  EXPECT_EQ(verdict.timings[2].bytes, 16u * 2 * 128256);
  EXPECT_GT(verdict.timings[2].time, absl::ZeroDuration());
}

// A device that is wrong in one bit of one output.
TEST(SelfTest, OneWrongBitFails) {
  CpuDevice cpu({.threads = 1});
  uint32_t row = 0;
  FakeDevice::Options options;
  options.max_batch_rows = 3;
  options.synchronous = true;
  options.sample = [&](const DeviceRow& device_row) {
    kernels::RowOutput answer = testing::SampleByReference(device_row);
    if (++row == 18) answer.token ^= 1;
    return answer;
  };
  FakeDevice device(options);
  const SelfTest::Verdict verdict = FullSelfTest().Run(&device, absl::Minutes(1));
  EXPECT_TRUE(absl::IsDataLoss(verdict.status));
  EXPECT_EQ(verdict.status.message(), "wrong answer to the golden row \"allowed tokens and bits\"");
  EXPECT_EQ(verdict.rows, 15u);
  EXPECT_EQ(row, 18u) << "nothing more is asked of it";
}

// Faults that everyday rows do not show.
struct Lie {
  const char* about;
  bool (*is_told)(const kernels::RowRequest&, const kernels::RowOutput&);
  void (*tell)(kernels::RowOutput*);
};
using kernels::RowFault;
using kernels::RowOutput;
using kernels::RowRequest;
using kernels::RowTask;
bool Is(const RowRequest& request, const RowOutput& answer, RowTask task) {
  return request.task == task && answer.error == RowFault::kNone;
}
const Lie kLies[] = {
    {"the rank of a scored token", [](const RowRequest& r, const RowOutput& a) { return Is(r, a, RowTask::kScore); },
     [](RowOutput* a) { a->raw.rank ^= 1; }},
    {"a token in a draft's place",
     [](const RowRequest& r, const RowOutput& a) { return Is(r, a, RowTask::kVerify) && !a.accepted; },
     [](RowOutput* a) { a->token ^= 1; }},
    {"a draft after a chain, with all of its distribution",
     [](const RowRequest& r, const RowOutput& a) {
       return Is(r, a, RowTask::kVerify) && r.draft.dense != nullptr && !r.parameters->chain.empty();
     },
     [](RowOutput* a) { a->accepted ^= true; }},
    {"why a draft fails its row",
     [](const RowRequest&, const RowOutput& a) { return a.error == RowFault::kDraftNoProbability; },
     [](RowOutput* a) { ++a->error_token; }},
    {"a logprob by name",
     [](const RowRequest& r, const RowOutput& a) { return !r.requested.empty() && Is(r, a, RowTask::kDraw); },
     [](RowOutput* a) { a->processed.requested.back().rank ^= 1; }},
    {"an entropy", [](const RowRequest& r, const RowOutput&) { return r.parameters->entropy; },
     [](RowOutput* a) { a->entropy.surplus ^= 1; }},
    {"a count of kept tokens",
     [](const RowRequest& r, const RowOutput&) { return r.parameters->kept_count && !r.parameters->kept_tokens; },
     [](RowOutput* a) { a->kept ^= 1; }},
    {"a kept set", [](const RowRequest& r, const RowOutput&) { return r.parameters->kept_tokens; },
     [](RowOutput* a) { a->kept_tokens.pop_back(); }},
    {"a token without logprobs",
     [](const RowRequest& r, const RowOutput& a) {
       return !r.parameters->raw_logprob && !r.parameters->processed_logprob && Is(r, a, RowTask::kDraw);
     },
     [](RowOutput* a) { a->token ^= 1; }},
    {"the thousandth logprob", [](const RowRequest&, const RowOutput& a) { return a.raw.top.size() == 1000; },
     [](RowOutput* a) { a->raw.top.back().bits ^= 1; }},
    {"a sampler's state", [](const RowRequest&, const RowOutput& a) { return a.sampler_state != 0; },
     [](RowOutput* a) { a->sampler_state ^= 1; }},
};

TEST(SelfTest, OneWrongFieldFails) {
  // By the address of the case's parameters: requests are the self-test's.
  std::map<const kernels::RowParameters*, kernels::RowOutput> answers;
  const auto answer_of = [&](const DeviceRow& row) -> const kernels::RowOutput& {
    const auto [at, is_new] = answers.try_emplace(row.request.parameters);
    if (is_new) at->second = testing::SampleByReference(row);
    return at->second;
  };
  for (const Lie& lie : kLies) {
    uint32_t told = 0;
    FakeDevice::Options options;
    options.max_batch_rows = 1000;
    options.synchronous = true;
    options.sample = [&](const DeviceRow& row) {
      kernels::RowOutput answer = answer_of(row);
      if (!lie.is_told(row.request, answer)) return answer;
      ++told;
      lie.tell(&answer);
      return answer;
    };
    FakeDevice device(options);
    EXPECT_TRUE(absl::IsDataLoss(FullSelfTest().Run(&device, absl::Minutes(1)).status)) << lie.about;
    EXPECT_GT(told, 0u) << lie.about;
  }
}

TEST(SelfTest, OnlySupportedRowsAreTested) {
  FakeDevice::Options options;
  options.max_vocabulary = 6;
  options.synchronous = true;
  options.max_batch_rows = 100;
  FakeDevice device(options);
  const SelfTest::Verdict verdict = FullSelfTest().Run(&device, absl::Minutes(1));
  EXPECT_TRUE(verdict.status.ok()) << verdict.status;
  EXPECT_GE(verdict.rows, 15u);
}

TEST(SelfTest, FailingOrSilentDeviceFails) {
  FakeDevice device({.max_batch_rows = 100});
  absl::Status status;
  FullSelfTest().Start(&device, [&](const SelfTest::Verdict& verdict) { status = verdict.status; });
  device.Fail(absl::UnavailableError("lost"));
  EXPECT_EQ(status, absl::UnavailableError("lost"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(FullSelfTest().Run(&device, absl::Milliseconds(1)).status));
  device.Fail(absl::UnavailableError("lost"));
}

}  // namespace
}  // namespace sortition::devices::self_test_test
