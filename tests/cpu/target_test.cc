// Targets: their number and names, and that they differ.
#include "kernels/cpu/target.h"

#include <gtest/gtest.h>

#include <set>

namespace sortition::kernels::cpu::target_test {
namespace {

TEST(Targets, ScalarRunsEverywhereAndIsLast) {
  EXPECT_EQ(RunnableTargets().back()->name, "scalar");
  EXPECT_EQ(&BestTarget(), RunnableTargets().front());
}

TEST(Targets, AreFoundByName) {
  for (const Target* target : RunnableTargets()) EXPECT_EQ(FindTarget(target->name), target);
  EXPECT_EQ(FindTarget("auto"), &BestTarget());
  EXPECT_EQ(FindTarget("avx5"), nullptr);
  EXPECT_EQ(FindTarget(""), nullptr);
}

TEST(Targets, NamesListEveryTarget) {
  std::string expected = "auto";
  for (const Target* target : RunnableTargets()) expected += ", " + std::string(target->name);
  EXPECT_EQ(TargetNames(), expected);
}

// Targets do not share functions, so a test that names a target has run it.
TEST(Targets, HaveTheirOwnKernels) {
  std::set<const void*> reads, races;
  for (const Target* target : RunnableTargets()) {
    reads.insert(reinterpret_cast<const void*>(target->kernels.ReadMaxima));
    races.insert(reinterpret_cast<const void*>(target->kernels.PromiseGroups));
  }
  EXPECT_EQ(reads.size(), RunnableTargets().size());
  EXPECT_EQ(races.size(), RunnableTargets().size());
}

#if defined(__x86_64__)
TEST(Targets, FollowTheProcessor) {
  __builtin_cpu_init();
  EXPECT_EQ(FindTarget("sse4") != nullptr, __builtin_cpu_supports("sse4.2") != 0);
  EXPECT_EQ(FindTarget("avx2") != nullptr, __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(FindTarget("avx512") != nullptr, __builtin_cpu_supports("avx512bw") != 0 &&
                                                 __builtin_cpu_supports("avx512dq") != 0 &&
                                                 __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(FindTarget("neon"), nullptr);
}
#endif

}  // namespace
}  // namespace sortition::kernels::cpu::target_test
