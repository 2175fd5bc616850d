// The list of limits has each once, and operators' values are published.
#include "service/limits.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sortition::service::limits_test {
namespace {

std::map<std::string, uint64_t> Described(const Limits& limits) {
  std::map<std::string, uint64_t> described;
  for (const LimitDescription& limit : DescribeLimits(limits)) {
    EXPECT_TRUE(described.try_emplace(std::string(limit.name), limit.value).second) << limit.name << " twice";
    EXPECT_FALSE(limit.description.empty()) << limit.name;
  }
  return described;
}

void SetToSeven(uint32_t* limit) { *limit = 7; }
void SetToSeven(uint64_t* limit) { *limit = 7; }
void SetToSeven(absl::Duration* limit) { *limit = absl::Milliseconds(7); }

// Changes each field alone and expects only the description of its name to change.
TEST(Limits, EachIsPublishedWithItsValue) {
  const std::map<std::string, uint64_t> defaults = Described(Limits());
  const auto check = [&](const char* name, const Limits& changed) {
    std::map<std::string, uint64_t> expected = defaults;
    expected.at(name) = 7;
    EXPECT_EQ(Described(changed), expected) << name;
  };
#define LIMIT(type, name, ...) \
  {                            \
    Limits limits;             \
    SetToSeven(&limits.name);  \
    check(#name, limits);      \
  }
#define FIXED_LIMIT(type, constant, name, ...) EXPECT_EQ(defaults.at(#name), uint64_t{constant});
#include "service/limits.inc"
}

TEST(Limits, TextOfABoundIsNameAndValue) {
  EXPECT_EQ(Bounds::max_draft_tokens().Text(), "max_draft_tokens 64");
  EXPECT_EQ(Bounds(Limits()).max_queue_time().Text(), "max_queue_time 250");
}

}  // namespace
}  // namespace sortition::service::limits_test
