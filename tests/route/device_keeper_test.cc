// The device keeper: requests of operators, and the batches of devices that leave service meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "devices/self_test/self_test.h"
#include "service/batch/batcher.h"
#include "tests/route/fixtures.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/pending_step.h"
#include "tests/support/scripted_fake_device.h"

namespace sortition::service::device_keeper_test {
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
    options.devices.self_test = self_test;
    batcher_ = std::make_unique<Batcher>(Limits(), pointers, &clock_, &observer_, std::move(options));
  }
  ~Operator() override { Finish(); }

  // Ends all batches of the devices.
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
    for (const DeviceStatus& status : batcher_->keeper().statuses()) {
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

TEST_F(Operator, ServesDuringItsSelfTest) {
  ASSERT_TRUE(batcher_->keeper().RunSelfTest("first", Keep()).ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kServing);
  EXPECT_EQ(batcher_->keeper().RunSelfTest("first", Keep()).code(), absl::StatusCode::kFailedPrecondition)
      << "one at a time";
  EXPECT_FALSE(verdict_.has_value());
  Finish();
  ASSERT_TRUE(verdict_.has_value());
  EXPECT_TRUE(verdict_->ok()) << *verdict_;
  EXPECT_EQ(StatusOf("first").state, DeviceState::kServing);
  EXPECT_TRUE(batcher_->keeper().RunSelfTest("first", Keep()).ok());
}

TEST_F(Operator, WrongDeviceLeaves) {
  fate_ = Fate::Kind::kLies;
  ASSERT_TRUE(batcher_->keeper().RunSelfTest("first", Keep()).ok());
  Finish();
  ASSERT_TRUE(verdict_.has_value());
  EXPECT_TRUE(absl::IsDataLoss(*verdict_)) << *verdict_;
  EXPECT_EQ(StatusOf("first").state, DeviceState::kQuarantined);
}

// The self-test before a server's first row. The device is right except about drafts.
TEST_F(Operator, WrongDraftsAloneFailTheSelfTest) {
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
  batcher.keeper().SetSelfTested(&liar, SmallSelfTest().Run(&liar, absl::Minutes(1)));
  EXPECT_EQ(batcher.keeper().statuses()[0].state, DeviceState::kQuarantined);
  EXPECT_THAT(batcher.keeper().statuses()[0].reason, ::testing::HasSubstr("verify"));
}

TEST_F(Operator, HeldDeviceWaitsForSelfTest) {
  const auto before = SubmitRow();
  ASSERT_TRUE(batcher_->keeper().Hold("first", "new driver").ok());
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
  EXPECT_EQ(batcher_->keeper().Hold("second", "").code(), absl::StatusCode::kFailedPrecondition)
      << "the last that serves";

  ASSERT_TRUE(batcher_->keeper().RunSelfTest("first", Keep()).ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kSelfTest);
  Finish();
  EXPECT_TRUE(verdict_->ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kServing);
  EXPECT_TRUE(batcher_->keeper().Hold("second", "").ok());
}

TEST_F(Operator, PassDoesNotEndALaterHold) {
  ASSERT_TRUE(batcher_->keeper().RunSelfTest("first", Keep()).ok());
  ASSERT_TRUE(batcher_->keeper().Hold("first", "").ok());
  Finish();
  EXPECT_TRUE(verdict_->ok());
  EXPECT_EQ(StatusOf("first").state, DeviceState::kQuarantined);
}

TEST_F(Operator, UnknownDevicesAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(batcher_->keeper().RunSelfTest("third", Keep())));
  EXPECT_TRUE(absl::IsNotFound(batcher_->keeper().Hold("", "")));
}

class KeeperWithoutSelfTest : public Operator {
 protected:
  KeeperWithoutSelfTest() : Operator(nullptr) {}
};

TEST_F(KeeperWithoutSelfTest, NothingLeavesService) {
  EXPECT_EQ(batcher_->keeper().RunSelfTest("first", Keep()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(batcher_->keeper().Hold("first", "").code(), absl::StatusCode::kFailedPrecondition);
}

// A keeper without a batcher, over two devices that are never given a row.
class KeeperBatches : public ::testing::Test {
 protected:
  KeeperBatches() : keeper_({&first_, &second_}, &clock_, &observer_, Options(), [this] { ++changes_; }) {}

  static testing::FakeDevice::Options Named(const char* name) {
    testing::FakeDevice::Options options;
    options.name = name;
    options.max_batch_rows = 1000;
    options.synchronous = true;
    return options;
  }
  static DeviceKeeperOptions Options() {
    DeviceKeeperOptions options;
    options.self_test = &SmallSelfTest();
    return options;
  }
  void Start() { keeper_.Started(&first_, shape_, clock_.Now()); }
  absl::Status End(absl::Status status) { return keeper_.Ended({&first_, shape_, 1, {}}, std::move(status)); }

  const Router::BatchSummary shape_ = {.rows = 1, .bytes = 16, .vocabulary = 4};
  testing::FakeClock clock_;
  NullObserver observer_;
  testing::FakeDevice first_{Named("first")};
  testing::FakeDevice second_{Named("second")};
  int changes_ = 0;
  DeviceKeeper keeper_;
};

TEST_F(KeeperBatches, OutputsAfterAFailureAreNotUsed) {
  Start();
  Start();
  EXPECT_TRUE(absl::IsInternal(End(absl::InternalError("broken"))));
  EXPECT_EQ(keeper_.statuses()[0].state, DeviceState::kQuarantined);
  EXPECT_TRUE(absl::IsUnavailable(End(absl::OkStatus())));
}

TEST_F(KeeperBatches, OutputsOfAHeldDeviceAreUsed) {
  Start();
  ASSERT_TRUE(keeper_.Hold("first", "").ok());
  EXPECT_TRUE(End(absl::OkStatus()).ok());
}

TEST_F(KeeperBatches, OutputsDuringABackoffAreUsed) {
  Start();
  Start();
  EXPECT_TRUE(absl::IsResourceExhausted(End(absl::ResourceExhaustedError("no memory"))));
  EXPECT_EQ(keeper_.Choose(shape_, clock_.Now()).device, &second_);
  EXPECT_TRUE(End(absl::OkStatus()).ok());
  EXPECT_EQ(keeper_.statuses()[0].state, DeviceState::kServing);
}

TEST_F(KeeperBatches, ChangesAreReported) {
  ASSERT_TRUE(keeper_.Hold("first", "").ok());
  EXPECT_EQ(changes_, 1);
  absl::Status verdict = absl::UnknownError("");
  ASSERT_TRUE(keeper_.RunSelfTest("first", [&](absl::Status status) { verdict = std::move(status); }).ok());
  EXPECT_TRUE(verdict.ok()) << verdict;
  EXPECT_EQ(changes_, 2);
  EXPECT_EQ(keeper_.statuses()[0].state, DeviceState::kServing);
}

}  // namespace
}  // namespace sortition::service::device_keeper_test
