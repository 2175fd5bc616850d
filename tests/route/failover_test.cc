// Devices that fail, give wrong outputs and are lost: every row is answered once, and correctly.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/reference.h"
#include "service/batch/batcher.h"
#include "tests/route/fixtures.h"
#include "tests/support/fake_clock.h"
#include "tests/support/pending_step.h"
#include "tests/support/scale.h"
#include "tests/support/scripted_fake_device.h"

namespace sortition::service::failover_test {
namespace {

using testing::Fate;
using testing::ScriptedFakeDevice;

constexpr uint32_t kVocabulary = 24;

const kernels::RowParameters kParameters;

// Random rows with the law's outputs.
struct Rows {
  struct Row {
    std::vector<float> logits;
    devices::DeviceRow device_row;
    kernels::RowOutput answer;
  };
  Rows() : rows(64) {
    std::mt19937_64 random(11);
    for (Row& row : rows) {
      for (uint32_t id = 0; id < kVocabulary; ++id) row.logits.push_back(float(random() % 64) / 16);
      kernels::RowRequest& request = row.device_row.request;
      request.live_vocabulary = kVocabulary;
      request.parameters = &kParameters;
      request.noise = {random(), uint32_t(random()), 0};
      row.device_row.segments.push_back(
          {reinterpret_cast<const std::byte*>(row.logits.data()), row.logits.size() * sizeof(float)});
      request.logits = row.logits.data();
      row.answer = law::SampleRowReference(request);
    }
  }
  std::vector<Row> rows;
};

const Rows& AllRows() {
  static const Rows& rows = *new Rows();
  return rows;
}

struct Events : NullEventLog {
  void DeviceChanged(const DeviceEvent& event) override { events.push_back(event); }
  std::vector<DeviceEvent> events;
};

class RecheckObserver : public NullObserver {
 public:
  void RowsRechecked(std::string_view, uint32_t r, uint32_t w) override {
    right += r;
    wrong += w;
  }
  uint64_t right = 0;
  uint64_t wrong = 0;
};

// Devices, one clock, and workers that send a row again if it is refused because devices failed.
class World {
 public:
  World(uint64_t seed, BatcherOptions options, std::vector<ScriptedFakeDevice::Script> scripts) : random_(seed) {
    std::vector<devices::Device*> pointers;
    for (ScriptedFakeDevice::Script& script : scripts) {
      devices::DeviceDescription description;
      description.name = absl::StrCat("fake", devices_.size());
      description.kind = "fake";
      description.max_batch_rows = 1 + Below(8);
      description.batches_in_flight = 1 + Below(3);
      devices_.push_back(std::make_unique<ScriptedFakeDevice>(description, &clock_, std::move(script)));
      pointers.push_back(devices_.back().get());
    }
    options.devices.seed = seed;
    options.devices.event_log = &events_;
    batcher_ = std::make_unique<Batcher>(Limits(), pointers, &clock_, &observer_, std::move(options));
  }

  uint32_t Below(uint32_t end) { return uint32_t(random_() % end); }
  RecheckObserver& observer() { return observer_; }
  const std::vector<DeviceEvent>& events() const { return events_.events; }
  absl::Time now() const { return clock_.Now(); }
  Batcher& batcher() { return *batcher_; }
  uint64_t wrong_tokens() const { return wrong_tokens_; }
  uint64_t refused() const { return refused_; }  // rows

  // Draws `tokens` tokens, several rows at a time, and advances the clock from event to event.
  void Draw(uint32_t tokens) {
    std::vector<uint32_t> again;
    for (uint32_t drawn = 0; drawn < tokens;) {
      std::vector<uint32_t> wanted = std::move(again);
      again.clear();
      for (uint32_t i = 1 + Below(12); i > 0 && drawn + wanted.size() < tokens; --i) wanted.push_back(Below(64));
      const auto step = Submit(wanted);
      for (int events = 0; step->delivered() < wanted.size(); ++events) {
        ASSERT_LT(events, 100'000) << "rows are lost";
        NextEvent();
      }
      for (uint32_t i = 0; i < wanted.size(); ++i) {
        if (step->WasRefused(i)) {
          ASSERT_EQ(step->WhyNot(i).reason, Reason::kDeviceFailed);
          again.push_back(wanted[i]);
          ++refused_;
        } else {
          wrong_tokens_ += step->Token(i) != AllRows().rows[wanted[i]].answer.token;
          ++drawn;
        }
      }
      // A worker that was refused waits before it tries again.
      if (!again.empty()) AdvanceTo(now() + absl::Seconds(5));
    }
  }

  // Ends the batches in flight.
  void Finish() {
    while (NextEnd() != absl::InfiniteFuture()) NextEvent();
    batcher_.reset();
  }

 private:
  std::shared_ptr<RecordingStep> Submit(const std::vector<uint32_t>& wanted) {
    auto step = std::make_shared<RecordingStep>();
    step->arrived = now();
    std::vector<QueuedRow> rows;
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      rows.push_back(
          {i, *names_.insert(absl::StrCat("request", wanted[i])).first, AllRows().rows[wanted[i]].device_row});
    }
    EXPECT_FALSE(batcher_->Submit(step, std::move(rows)).has_value());
    return step;
  }
  absl::Time NextEnd() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& device : devices_) next = std::min(next, device->NextEnd());
    return next;
  }
  void AdvanceTo(absl::Time time) {
    while (NextEnd() <= time) NextEvent();
    clock_.Advance(time - now());
    batcher_->Sweep();
  }
  // Ends the next batch, or lets half a second pass and calls Sweep.
  void NextEvent() {
    const absl::Time next = NextEnd();
    if (next > now() + absl::Milliseconds(500)) {
      clock_.Advance(absl::Milliseconds(500));
      return batcher_->Sweep();
    }
    clock_.Advance(next - now());
    for (const auto& device : devices_) {
      if (device->NextEnd() <= now()) return device->EndNext();
    }
  }

  std::mt19937_64 random_;
  testing::FakeClock clock_;
  Events events_;
  RecheckObserver observer_;
  std::vector<std::unique_ptr<ScriptedFakeDevice>> devices_;
  std::set<std::string> names_;  // that queued rows refer to
  std::unique_ptr<Batcher> batcher_;
  uint64_t wrong_tokens_ = 0;
  uint64_t refused_ = 0;
};

BatcherOptions Options(double recheck_share) {
  BatcherOptions options;
  options.devices.self_test = &SmallSelfTest();
  options.devices.recheck_share = recheck_share;
  return options;
}

// Three devices with all kinds of faults, in live batches and in self-tests. Every row is re-checked, so no wrong token
// leaves.
TEST(Failover, NoTokenIsWrongLostOrDoubled) {
  uint64_t lies = 0;
  uint64_t quarantines = 0;
  uint64_t returns = 0;
  uint64_t breaks = 0;
  for (uint64_t seed = 0; seed < testing::Scaled(1000); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 dice(seed * 3 + 1);
    std::vector<ScriptedFakeDevice::Script> scripts;
    for (int device = 0; device < 3; ++device) {
      const uint64_t fault = dice() % 5;                             // of 16 batches
      const int64_t slowness = seed % 2 == 0 ? 1 << dice() % 8 : 1;  // in every other world all devices get batches
      scripts.push_back([&dice, fault, slowness](const std::vector<devices::DeviceRow>& rows) {
        Fate fate{Fate::Kind::kRight, absl::Microseconds(slowness * int64_t(20 + 5 * rows.size() + dice() % 50))};
        if (dice() % 16 < fault) fate.kind = static_cast<Fate::Kind>(1 + dice() % 4);
        if (dice() % 64 == 0) fate.time *= 100;
        return fate;
      });
    }
    World world(seed, Options(1), std::move(scripts));
    world.Draw(60);
    ASSERT_EQ(world.wrong_tokens(), 0u);
    world.Finish();
    if (HasFatalFailure()) return;
    lies += world.observer().wrong;
    for (const DeviceEvent& event : world.events()) {
      quarantines += event.state == DeviceState::kQuarantined;
      const bool backs_off = absl::StartsWith(event.reason, "gets no batches");
      (backs_off ? breaks : returns) += event.state == DeviceState::kServing;
    }
  }
  // The faults did happen. Wrong outputs and returns occur twice as often as is required here: the few seeds of a
  // sanitizer run may have fewer than their share.
  EXPECT_GE(lies, testing::Scaled(1000) / 4);
  EXPECT_GE(quarantines, testing::Scaled(1000));
  EXPECT_GE(returns, testing::Scaled(1000) / 4);
  EXPECT_GE(breaks, testing::Scaled(1000) / 10);
}

// Passes its self-tests, and is wrong in one row of every live batch.
Fate LieWhenLive(const std::vector<devices::DeviceRow>& rows) {
  const bool live = rows.front().request.live_vocabulary == kVocabulary;
  return {live ? Fate::Kind::kLies : Fate::Kind::kRight, absl::Microseconds(10)};
}

TEST(Recheck, WrongDeviceIsCaughtWithinComputedRows) {
  constexpr double kShare = 0.2;
  // Fails for a correct service with probability 10^-9 a seed: (1 - kShare)^93.
  constexpr uint64_t kMost = 93;
  uint64_t wrong = 0;
  constexpr int kSeeds = 50;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    World world(seed, Options(kShare), {LieWhenLive, [](const auto&) {
                                          return Fate{Fate::Kind::kRight, absl::Milliseconds(1)};
                                        }});
    while (world.observer().wrong == 0) world.Draw(10);
    EXPECT_LE(world.wrong_tokens(), kMost);
    wrong += world.wrong_tokens();
    const DeviceEvent& event = world.events().front();
    EXPECT_EQ(event.device, "fake0");
    EXPECT_EQ(event.state, DeviceState::kQuarantined);
    EXPECT_TRUE(event.gave_wrong_output);
    EXPECT_EQ(event.reason, "wrong answers to 1 live rows");
    EXPECT_GE(event.unchecked_rows, world.wrong_tokens());
    EXPECT_EQ(event.sequences.empty(), event.unchecked_rows == 0);
    world.Finish();
  }
  // On average 1 / share - 1 = 4 wrong rows pass.
  EXPECT_GE(wrong, uint64_t{kSeeds});
  EXPECT_LE(wrong, uint64_t{kSeeds} * 12);
}

TEST(Recheck, ShareOfRowsIsAsConfigured) {
  for (const double share : {0.0, 0.3, 1.0}) {
    World world(5, Options(share), {[](const auto&) { return Fate{Fate::Kind::kRight, absl::Microseconds(10)}; }});
    world.Draw(2000);
    world.Finish();
    // Five standard deviations: probability 10^-6.
    EXPECT_NEAR(double(world.observer().right), 2000 * share, share == 1 ? 0 : 5 * 21 * share);
    EXPECT_EQ(world.observer().wrong, 0u);
  }
}

// A device without memory is given one batch a second, fails it and stays in service; later it has memory again.
TEST(Failover, DeviceOutOfMemoryBacksOffInService) {
  int full = 0;
  int after = 0;
  World* here = nullptr;
  absl::Time freed;
  World world(1, Options(0),
              {[&](const auto&) {
                 const bool has_memory = here->now() >= freed;
                 ++(has_memory ? after : full);
                 return Fate{has_memory ? Fate::Kind::kRight : Fate::Kind::kHasNoMemory, absl::Milliseconds(10)};
               },
               [](const auto&) {
                 return Fate{Fate::Kind::kRight, absl::Milliseconds(20)};
               }});
  here = &world;
  const absl::Time start = world.now();
  freed = start + absl::Seconds(10);
  while (world.now() < freed + 2 * DeviceHealth::kBatchBackoff) {
    world.Draw(50);
    world.batcher().Sweep();
  }
  const double seconds = absl::ToDoubleSeconds(world.now() - start);
  EXPECT_GE(full, 5);
  EXPECT_LE(full, 3 * (seconds + 1));  // 3: the batches that it takes at once
  for (const DeviceEvent& event : world.events()) EXPECT_EQ(event.state, DeviceState::kServing);
  EXPECT_GT(after, 0);
  EXPECT_EQ(world.refused(), 0u);
  EXPECT_EQ(world.wrong_tokens(), 0u);
  world.Finish();
}

TEST(Failover, OnlyDeviceOutOfMemoryRetriesAtOnce) {
  int batches = 0;
  World world(1, Options(0), {[&](const auto&) {
                return Fate{++batches == 3 ? Fate::Kind::kHasNoMemory : Fate::Kind::kRight, absl::Microseconds(10)};
              }});
  world.Draw(100);
  EXPECT_TRUE(world.events().empty());
  EXPECT_GT(world.refused(), 0u);
  EXPECT_EQ(world.wrong_tokens(), 0u);
  world.Finish();
}

TEST(Failover, OnlyDeviceLostRefusesRowsUntilBack) {
  int batches = 0;
  World world(1, Options(0), {[&](const auto&) {
                return Fate{++batches == 3 ? Fate::Kind::kLost : Fate::Kind::kRight, absl::Microseconds(10)};
              }});
  world.Draw(100);
  ASSERT_EQ(world.events().size(), 2u);
  EXPECT_EQ(world.events()[0].state, DeviceState::kQuarantined);
  EXPECT_FALSE(world.events()[0].gave_wrong_output);
  EXPECT_EQ(world.events()[1].state, DeviceState::kServing);
  EXPECT_EQ(world.wrong_tokens(), 0u);
  world.Finish();
}

}  // namespace
}  // namespace sortition::service::failover_test
