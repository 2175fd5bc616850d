// What a device must show before it serves.
#include "devices/proof/proof.h"

#include <gtest/gtest.h>

#include <map>

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

// What a device may have wrong that rows of every day do not show.
struct Lie {
  const char* about;
  bool (*is_told)(const kernels::RowRequest&, const kernels::RowAnswer&);
  void (*tell)(kernels::RowAnswer*);
};
using kernels::RowAnswer;
using kernels::RowError;
using kernels::RowRequest;
using kernels::RowTask;
bool Is(const RowRequest& request, const RowAnswer& answer, RowTask task) {
  return request.task == task && answer.error == RowError::kNone;
}
const Lie kLies[] = {
    {"the rank of a scored token", [](const RowRequest& r, const RowAnswer& a) { return Is(r, a, RowTask::kScore); },
     [](RowAnswer* a) { a->raw.rank ^= 1; }},
    {"a token in a draft's place",
     [](const RowRequest& r, const RowAnswer& a) { return Is(r, a, RowTask::kVerify) && !a.accepted; },
     [](RowAnswer* a) { a->token ^= 1; }},
    {"a draft after a chain, with all of its distribution",
     [](const RowRequest& r, const RowAnswer& a) {
       return Is(r, a, RowTask::kVerify) && r.draft.dense != nullptr && !r.parameters->chain.empty();
     },
     [](RowAnswer* a) { a->accepted ^= true; }},
    {"why a draft fails its row",
     [](const RowRequest&, const RowAnswer& a) { return a.error == RowError::kDraftNoProbability; },
     [](RowAnswer* a) { ++a->error_token; }},
    {"a logprob by name",
     [](const RowRequest& r, const RowAnswer& a) { return !r.requested.empty() && Is(r, a, RowTask::kDraw); },
     [](RowAnswer* a) { a->processed.requested.back().rank ^= 1; }},
    {"an entropy", [](const RowRequest& r, const RowAnswer&) { return r.parameters->entropy; },
     [](RowAnswer* a) { a->entropy.surplus ^= 1; }},
    {"a count of kept tokens",
     [](const RowRequest& r, const RowAnswer&) { return r.parameters->kept_count && !r.parameters->kept_tokens; },
     [](RowAnswer* a) { a->kept ^= 1; }},
    {"a kept set", [](const RowRequest& r, const RowAnswer&) { return r.parameters->kept_tokens; },
     [](RowAnswer* a) { a->kept_tokens.pop_back(); }},
    {"a token without logprobs",
     [](const RowRequest& r, const RowAnswer& a) {
       return !r.parameters->raw_logprob && !r.parameters->processed_logprob && Is(r, a, RowTask::kDraw);
     },
     [](RowAnswer* a) { a->token ^= 1; }},
    {"the thousandth logprob", [](const RowRequest&, const RowAnswer& a) { return a.raw.top.size() == 1000; },
     [](RowAnswer* a) { a->raw.top.back().bits ^= 1; }},
    {"a sampler's state", [](const RowRequest&, const RowAnswer& a) { return a.sampler_state != 0; },
     [](RowAnswer* a) { a->sampler_state ^= 1; }},
};

TEST(Proof, ALieAboutOneThingIsNoPass) {
  // By the case, since requests are the proof's own.
  std::map<const kernels::RowParameters*, kernels::RowAnswer> answers;
  const auto answer_of = [&](const DeviceRow& row) -> const kernels::RowAnswer& {
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
      kernels::RowAnswer answer = answer_of(row);
      if (!lie.is_told(row.request, answer)) return answer;
      ++told;
      lie.tell(&answer);
      return answer;
    };
    FakeDevice device(options);
    EXPECT_TRUE(absl::IsDataLoss(FullProof().Run(&device, absl::Minutes(1)).status)) << lie.about;
    EXPECT_GT(told, 0u) << lie.about;
  }
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
