// Devices that an operator proves again, takes out of service and brings back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "devices/self_test/self_test.h"
#include "service/batch/batcher.h"
#include "tests/route/small_self_test.h"
#include "tests/service/pending_step.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/scripted_fake_device.h"

namespace sortition::service {
namespace {

using testing::Fate;
using testing::ScriptedFakeDevice;

class Operator : public ::testing::Test {
 protected:
  explicit Operator(const devices::SelfTest* self_test = &SmallSelfTest()) {
    std::vector<devices::Device*> pointers;
    for (const char* name : {"first", "second"}) {
      devices::DeviceDescription description;
      description.name = name;
      description.kind = "fake";
      description.max_batch_rows = 8;
      description.batches_in_flight = 1;
      devices_.push_back(std::make_unique<ScriptedFakeDevice>(description, &clock_, [this](const auto&) {
        return Fate{fate_, absl::Milliseconds(1)};
      }));
      pointers.push_back(devices_.back().get());
    }
    BatcherOptions options;
    options.self_test = self_test;
    batcher_ = std::make_unique<Batcher>(Limits(), pointers, &clock_, &observer_, std::move(options));
  }
  ~Operator() override { Finish(); }

  // Lets the devices do all that they have.
  void Finish() {
    for (bool any = true; any;) {
      any = false;
      for (const auto& device : devices_) {
        if (device->NextEnd() == absl::InfiniteFuture()) continue;
        clock_.Advance(std::max(device->NextEnd() - clock_.Now(), absl::ZeroDuration()));
        device->EndNext();
        any = true;
      }
    }
  }

  DeviceStatus StatusOf(const std::string& name) {
    for (const DeviceStatus& status : batcher_->device_statuses()) {
      if (status.device->description().name == name) return status;
    }
    return {};
  }

  std::shared_ptr<RecordingStep> SubmitRow() {
    kernels::RowRequest request;
    request.live_vocabulary = 4;
    request.parameters = &parameters_;
    request.logits = logits_;
    devices::DeviceRow row;
    row.request = request;
    row.segments.push_back({reinterpret_cast<const std::byte*>(logits_), sizeof(logits_)});
    auto step = std::make_shared<RecordingStep>();
    std::vector<QueuedRow> rows;
    rows.push_back({0, "request", row});
    EXPECT_FALSE(batcher_->Submit(step, std::move(rows)).has_value());
    return step;
  }

  std::function<void(absl::Status)> Keep() {
    return [this](absl::Status status) { verdict_ = std::move(status); };
  }

  const kernels::RowParameters parameters_;
  const float logits_[4] = {0, 1, 2, 3};
  testing::FakeClock clock_;
  NullObserver observer_;
  Fate::Kind fate_ = Fate::Kind::kRight;
  std::optional<absl::Status> verdict_;
  std::vector<std::unique_ptr<ScriptedFakeDevice>> devices_;
  std::unique_ptr<Batcher> batcher_;
};

TEST_F(Operator, ServingDeviceServesDuringSelfTest) {
  ASSERT_TRUE(batcher_->Prove("first", Keep()).ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kServing);
  EXPECT_EQ(batcher_->Prove("first", Keep()).code(), absl::StatusCode::kFailedPrecondition) << "one at a time";
  EXPECT_FALSE(verdict_.has_value());
  Finish();
  ASSERT_TRUE(verdict_.has_value());
  EXPECT_TRUE(verdict_->ok()) << *verdict_;
  EXPECT_EQ(StatusOf("first").state, DeviceState::kServing);
  EXPECT_TRUE(batcher_->Prove("first", Keep()).ok());
}

TEST_F(Operator, WrongDeviceIsQuarantined) {
  fate_ = Fate::Kind::kLies;
  ASSERT_TRUE(batcher_->Prove("first", Keep()).ok());
  Finish();
  ASSERT_TRUE(verdict_.has_value());
  EXPECT_TRUE(absl::IsDataLoss(*verdict_)) << *verdict_;
  EXPECT_EQ(StatusOf("first").state, DeviceState::kQuarantined);
}

// As a server does before its first row, with a device that is right about all but drafts.
TEST_F(Operator, DeviceWrongAboutDraftsDoesNotStart) {
  testing::FakeDevice::Options options;
  options.max_batch_rows = 1000;
  options.synchronous = true;
  options.sample = [](const devices::DeviceRow& row) {
    kernels::RowOutput answer = testing::SampleByReference(row);
    if (row.request.task == kernels::RowTask::kVerify) answer.accepted = !answer.accepted;
    return answer;
  };
  testing::FakeDevice liar(options);
  Batcher batcher(Limits(), {&liar}, &clock_, &observer_, BatcherOptions());
  batcher.SetSelfTested(&liar, SmallSelfTest().Run(&liar, absl::Minutes(1)));
  EXPECT_EQ(batcher.device_statuses()[0].state, DeviceState::kQuarantined);
  EXPECT_THAT(batcher.device_statuses()[0].reason, ::testing::HasSubstr("verify"));
}

TEST_F(Operator, HeldDeviceStaysOutUntilSelfTest) {
  const auto before = SubmitRow();
  ASSERT_TRUE(batcher_->Hold("first", "new driver").ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kQuarantined);
  EXPECT_EQ(StatusOf("first").reason, "held by an operator: new driver");
  Finish();
  EXPECT_EQ(before->delivered(), 1u);
  EXPECT_FALSE(before->WasRefused(0)) << "what it had begun is answered";
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(absl::Minutes(1));
    batcher_->Sweep();
    const auto step = SubmitRow();
    EXPECT_EQ(devices_[0]->NextEnd(), absl::InfiniteFuture());
    Finish();
    EXPECT_FALSE(step->WasRefused(0));
  }
  EXPECT_EQ(batcher_->Hold("second", "").code(), absl::StatusCode::kFailedPrecondition) << "the last that serves";

  ASSERT_TRUE(batcher_->Prove("first", Keep()).ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kProving);
  Finish();
  EXPECT_TRUE(verdict_->ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kServing);
  EXPECT_TRUE(batcher_->Hold("second", "").ok());
}

TEST_F(Operator, SelfTestDoesNotOverrideLaterHold) {
  ASSERT_TRUE(batcher_->Prove("first", Keep()).ok());
  ASSERT_TRUE(batcher_->Hold("first", "").ok());
  Finish();
  EXPECT_TRUE(verdict_->ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kQuarantined);
}

TEST_F(Operator, UnknownDeviceNamesAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(batcher_->Prove("third", Keep())));
  EXPECT_TRUE(absl::IsNotFound(batcher_->Hold("", "")));
}

class OperatorWithoutSelfTest : public Operator {
 protected:
  OperatorWithoutSelfTest() : Operator(nullptr) {}
};

TEST_F(OperatorWithoutSelfTest, NothingIsTakenOutOfService) {
  EXPECT_EQ(batcher_->Prove("first", Keep()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(batcher_->Hold("first", "").code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sortition::service
