// The choice of a device.
#include "service/route/router.h"

#include <gtest/gtest.h>

#include "tests/support/fake_device.h"

namespace sortition::service {
namespace {

using testing::FakeDevice;

TEST(Router, FewestRowsInFlightThenTheFirst) {
  FakeDevice a({.name = "a", .batches_in_flight = 3});
  FakeDevice b({.name = "b", .batches_in_flight = 3});
  Router router({&a, &b});
  EXPECT_EQ(router.Choose(), &a);
  router.Started(&a, 5);
  EXPECT_EQ(router.Choose(), &b);
  router.Started(&b, 5);
  EXPECT_EQ(router.Choose(), &a);
  router.Started(&a, 1);
  EXPECT_EQ(router.Choose(), &b);
  router.Finished(&a, 5);
  EXPECT_EQ(router.Choose(), &a);
}

TEST(Router, OnlyDevicesWithRoom) {
  FakeDevice a({.name = "a", .batches_in_flight = 1});
  FakeDevice b({.name = "b", .batches_in_flight = 2});
  Router router({&a, &b});
  router.Started(&a, 1);
  router.Started(&b, 100);
  EXPECT_EQ(router.Choose(), &b) << "more rows, but room";
  router.Started(&b, 100);
  EXPECT_EQ(router.Choose(), nullptr);
  router.Finished(&b, 100);
  EXPECT_EQ(router.Choose(), &b);
  router.Finished(&a, 1);
  EXPECT_EQ(router.Choose(), &a);
}

TEST(RouterDeathTest, BooksMustClose) {
  FakeDevice a({}), stranger({});
  Router router({&a});
  router.Started(&a, 2);
  EXPECT_DEATH(router.Finished(&a, 3), "broken invariant");
  EXPECT_DEATH(router.Started(&stranger, 1), "broken invariant");
  EXPECT_DEATH(Router({}), "broken invariant");
}

}  // namespace
}  // namespace sortition::service
