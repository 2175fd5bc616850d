// The choice of a device.
#include "service/route/router.h"

#include <gtest/gtest.h>

#include "tests/route/fixtures.h"
#include "tests/support/fake_device.h"

namespace sortition::service::router_test {
namespace {

using testing::FakeDevice;

Router::BatchSummary MakeBatch(uint32_t rows, uint32_t vocabulary = 1000) {
  return {rows, uint64_t{rows} * vocabulary * 2, vocabulary, devices::kHostMemory};
}

// Lets the device do batches of `rows` rows until the router knows that each takes `seconds`.
void Teach(Router* router, const devices::Device* device, uint32_t rows, double seconds, absl::Time* now) {
  for (int i = 0; i < 20; ++i) {
    router->Started(device, MakeBatch(rows), *now);
    *now += absl::Seconds(seconds);
    router->Finished(device, MakeBatch(rows), true, *now);
  }
}

TEST(Router, ChoosesEarliestExpectedFinish) {
  FakeDevice slow({.name = "slow", .batches_in_flight = 8});
  FakeDevice fast({.name = "fast", .batches_in_flight = 8});
  Router router({&slow, &fast});
  absl::Time now = kStart;
  Teach(&router, &slow, 10, 0.010, &now);
  Teach(&router, &fast, 10, 0.004, &now);
  // The fast device finishes two batches before the slow one finishes one.
  EXPECT_EQ(router.Choose(MakeBatch(10), now).device, &fast);
  router.Started(&fast, MakeBatch(10), now);
  EXPECT_EQ(router.Choose(MakeBatch(10), now).device, &fast);
  router.Started(&fast, MakeBatch(10), now);
  const Router::Choice third = router.Choose(MakeBatch(10), now);
  EXPECT_EQ(third.device, &slow);
  EXPECT_EQ(third.reason, RouteReason::kFastest);
  // Progress of the fast device meanwhile counts.
  EXPECT_EQ(router.Choose(MakeBatch(10), now + absl::Milliseconds(5)).device, &fast);
}

TEST(Router, BusyTimesCountTimeWithABatchOnce) {
  FakeDevice one({.name = "one", .batches_in_flight = 8});
  FakeDevice other({.name = "other"});
  Router router({&one, &other});
  const auto at = [](int seconds) { return kStart + absl::Seconds(seconds); };
  router.Started(&one, MakeBatch(10), at(0));
  router.Started(&one, MakeBatch(20), at(1));
  const std::vector<absl::Duration> running = {absl::Seconds(2), absl::ZeroDuration()};
  EXPECT_EQ(router.BusyTimes(at(2)), running);
  router.Finished(&one, MakeBatch(10), true, at(3));
  router.Finished(&one, MakeBatch(20), false, at(5));
  const std::vector<absl::Duration> idle = {absl::Seconds(5), absl::ZeroDuration()};
  EXPECT_EQ(router.BusyTimes(at(9)), idle);
}

TEST(Router, BatchWaitsForBusyButFasterDevice) {
  FakeDevice slow({.name = "slow"});
  FakeDevice fast({.name = "fast"});
  Router router({&slow, &fast});
  absl::Time now = kStart;
  Teach(&router, &slow, 10, 1.0, &now);
  Teach(&router, &fast, 10, 0.001, &now);
  router.Started(&fast, MakeBatch(10), now);
  EXPECT_EQ(router.Choose(MakeBatch(10), now).device, nullptr);
  // Until the fast device is so late that its end cannot be predicted.
  EXPECT_EQ(router.Choose(MakeBatch(10), now + absl::Seconds(2)).device, &slow);
}

TEST(Router, SlowDeviceIsTriedAgain) {
  FakeDevice a({.name = "a"});
  FakeDevice b({.name = "b"});
  Router router({&a, &b});
  absl::Time now = kStart;
  Teach(&router, &a, 10, 0.001, &now);
  Teach(&router, &b, 10, 0.0005, &now);
  router.costs(&a).MakePrior();
  router.costs(&b).MakePrior();
  Teach(&router, &b, 10, 0.1, &now);
  EXPECT_EQ(router.Choose(MakeBatch(10), now).device, &a);
  now += absl::Minutes(10);
  EXPECT_EQ(router.Choose(MakeBatch(10), now).device, &b);
}

TEST(Router, UploadCostCountsForDiscreteMemory) {
  FakeDevice host({.name = "host"});
  FakeDevice card({.name = "card", .memory = 1});
  Router router({&host, &card});
  absl::Time now = kStart;
  Router::BatchSummary here = MakeBatch(8, 100'000);
  Router::BatchSummary there = here;
  there.memory = 1;
  for (int i = 0; i < 20; ++i) {
    for (const auto& [device, batch, seconds] :
         {std::tuple<FakeDevice*, Router::BatchSummary, double>(&host, here, 0.002),
          {&host, there, 0.009},
          {&card, here, 0.008},
          {&card, there, 0.001}}) {
      router.Started(device, batch, now);
      now += absl::Seconds(seconds);
      router.Finished(device, batch, true, now);
    }
  }
  EXPECT_EQ(router.Choose(here, now).device, &host);
  EXPECT_EQ(router.Choose(there, now).device, &card);
}

// Other devices would read them through the host; they do so while the device is out of service.
TEST(Router, LogitsInDeviceMemoryStay) {
  FakeDevice host({.name = "host"});
  FakeDevice card({.name = "card", .memory = 1});
  Router router({&host, &card});
  absl::Time now = kStart;
  Router::BatchSummary there = MakeBatch(8, 100'000);
  there.memory = 1;
  for (int i = 0; i < 20; ++i) {
    for (const auto& [device, seconds] : {std::pair<FakeDevice*, double>(&host, 0.001), {&card, 0.1}}) {
      router.Started(device, there, now);
      now += absl::Seconds(seconds);
      router.Finished(device, there, true, now);
    }
  }
  EXPECT_EQ(router.Choose(there, now).device, &card);
  EXPECT_EQ(router.Choose(there, now).reason, RouteReason::kMemory);
  EXPECT_GT(router.SecondsToDrain(there, now), 0.05) << "the host is no help";
  router.Started(&card, there, now);
  EXPECT_EQ(router.Choose(there, now).device, nullptr) << "it waits for the card";
  router.health(&card).Quarantine("broken", now);
  EXPECT_EQ(router.Choose(there, now).device, &host);
  EXPECT_EQ(router.Choose(there, now).reason, RouteReason::kOnly);
}

TEST(Router, OnlyDevicesThatTakeTheVocabulary) {
  FakeDevice small({.name = "small", .max_vocabulary = 100});
  FakeDevice large({.name = "large"});
  Router router({&small, &large});
  const Router::Choice choice = router.Choose(MakeBatch(1, 101), kStart);
  EXPECT_EQ(choice.device, &large);
  EXPECT_EQ(choice.reason, RouteReason::kOnly);
  EXPECT_EQ(router.Choose(MakeBatch(1, 100), kStart).device, &small);
  EXPECT_TRUE(router.CanServe({101}));
  EXPECT_FALSE(router.OtherCanServe(&large, {101}));
  router.health(&large).Quarantine("broken", kStart);
  EXPECT_FALSE(router.CanServe({101}));
  EXPECT_TRUE(router.CanServe({100}));
  EXPECT_EQ(router.Choose(MakeBatch(1, 101), kStart).device, nullptr);
}

TEST(Router, OnlyDevicesWithRequestedFeatures) {
  FakeDevice plain({.name = "plain", .features = kernels::FeatureOf(kernels::StageKind::kTopK)});
  FakeDevice full({.name = "full"});
  Router router({&plain, &full});
  Router::BatchSummary batch = MakeBatch(1);
  batch.features = kernels::FeatureOf(kernels::StageKind::kTopK) | kernels::FeatureOf(kernels::StageKind::kXtc);
  const Router::Choice choice = router.Choose(batch, kStart);
  EXPECT_EQ(choice.device, &full);
  EXPECT_EQ(choice.reason, RouteReason::kFeatures);
  EXPECT_FALSE(router.OtherCanServe(&full, batch.needs()));
  batch.features = kernels::FeatureOf(kernels::StageKind::kTopK);
  EXPECT_TRUE(router.OtherCanServe(&full, batch.needs()));
}

// A device in quarantine may serve again, so the router lacks none of its features.
TEST(Router, FeaturesAreLackedByWhatIsThereAndNotByWhatServes) {
  constexpr kernels::Features kXtc = kernels::FeatureOf(kernels::StageKind::kXtc);
  constexpr kernels::Features kTopK = kernels::FeatureOf(kernels::StageKind::kTopK);
  FakeDevice plain({.name = "plain", .max_vocabulary = 100, .features = kTopK});
  FakeDevice full({.name = "full", .max_vocabulary = 200});
  Router router({&plain, &full});
  EXPECT_EQ(router.Lacking(kTopK | kXtc), kernels::kNoFeatures);
  router.health(&full).Quarantine("broken", kStart);
  EXPECT_FALSE(router.CanServe({1, kXtc}));
  EXPECT_EQ(router.Lacking(kTopK | kXtc), kernels::kNoFeatures);
  EXPECT_EQ(router.widest_vocabulary(), 200u);
  Router pinned({&plain, &full}, {"plain"});
  EXPECT_EQ(pinned.Lacking(kTopK | kXtc), kXtc);
  EXPECT_EQ(pinned.widest_vocabulary(), 100u);
}

TEST(Router, AlikeDevicesShareWhileTheyHaveRoom) {
  FakeDevice a({.name = "a", .batches_in_flight = 1});
  FakeDevice b({.name = "b", .batches_in_flight = 2});
  Router router({&a, &b});
  for (const FakeDevice* expected : {&a, &b, &b}) {
    const Router::Choice choice = router.Choose(MakeBatch(1), kStart);
    EXPECT_EQ(choice.device, expected);
    EXPECT_EQ(choice.reason, RouteReason::kFastest);
    router.Started(choice.device, MakeBatch(1), kStart);
  }
  EXPECT_EQ(router.Choose(MakeBatch(1), kStart).device, nullptr);
  router.Finished(&b, MakeBatch(1), true, kStart);
  EXPECT_EQ(router.Choose(MakeBatch(1), kStart).device, &b);
}

TEST(Router, PinnedUsesThatDevice) {
  FakeDevice a({.name = "a"});
  FakeDevice b({.name = "b"});
  Router router({&a, &b}, {"b"});
  EXPECT_EQ(router.Choose(MakeBatch(1), kStart).device, &b);
  EXPECT_EQ(router.Choose(MakeBatch(1), kStart).reason, RouteReason::kPinned);
  EXPECT_FALSE(router.OtherCanServe(&b, {1}));
}

TEST(RoutePolicy, ByName) {
  EXPECT_EQ(RoutePolicy::Parse("auto")->pinned, "");
  EXPECT_EQ(RoutePolicy::Parse("pinned:cpu0")->pinned, "cpu0");
  for (const char* wrong : {"", "Auto", "pinned", "pinned:", "fastest"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RoutePolicy::Parse(wrong).status())) << wrong;
  }
}

TEST(RouterDeathTest, UnbalancedAccountingAborts) {
  FakeDevice a({}), stranger({});
  Router router({&a});
  router.Started(&a, MakeBatch(2), kStart);
  EXPECT_DEATH(router.Finished(&a, MakeBatch(3), true, kStart), "broken invariant");
  EXPECT_DEATH(router.Started(&stranger, MakeBatch(1), kStart), "broken invariant");
  EXPECT_DEATH(Router({}), "broken invariant");
  EXPECT_DEATH(Router({&a}, {"nobody"}), "broken invariant");
}

}  // namespace
}  // namespace sortition::service::router_test
