// Candidates compare as the law orders tokens.
#include "kernels/cpu/candidate.h"

#include <gtest/gtest.h>

#include "kernels/law/law.h"

namespace sortition::kernels::cpu::candidate_test {
namespace {

TEST(Candidate, ComparesInLawsOrder) {
  const Candidate all[] = {Candidate::Of(1, 5), Candidate::Of(1, 0), Candidate::Of(0x80000000, 7),
                           Candidate::Of(0x80000000, 6), Candidate::Of(0xc77fdfff, 1048574)};
  for (const Candidate& a : all) {
    for (const Candidate& b : all) {
      EXPECT_EQ(a > b, law::Before(a.key(), a.token(), b.key(), b.token()));
    }
    EXPECT_GT(a, kLastLive);
  }
}

TEST(Candidate, RoundTripsItsParts) {
  const Candidate candidate = Candidate::Of(0xc77fdfff, 1048574);
  EXPECT_EQ(candidate.key(), 0xc77fdfffu);
  EXPECT_EQ(candidate.token(), 1048574u);
}

TEST(Candidate, NoMaskedTokenIsLive) { EXPECT_LT(Candidate::Of(0, 0), kLastLive); }

}  // namespace
}  // namespace sortition::kernels::cpu::candidate_test
