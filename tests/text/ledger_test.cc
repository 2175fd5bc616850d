// Advice to workers that lost their sequences: when to send the histories.
#include "service/ledger.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace sortition::service::ledger_test {
namespace {

class LedgerTest : public ::testing::Test {
 protected:
  // A history takes a second.
  static constexpr uint64_t kTokens = 1'000'000;

  absl::Duration Advice(const Ledger::Owner& owner) { return ledger_.Advice(owner, kTokens); }

  testing::FakeClock clock_;
  SystemEntropy entropy_;
  Ledger ledger_{{.replay_tokens_per_second = kTokens}, &clock_, &entropy_};
};

TEST_F(LedgerTest, WaitersAreServedInOrder) {
  EXPECT_EQ(Advice({1, 1}), absl::ZeroDuration());
  for (int i = 1; i < 10; ++i) {
    const absl::Duration advice = Advice({1, 1});
    EXPECT_GE(advice, absl::Seconds(i));
    EXPECT_LE(advice, absl::Seconds(i) * 1.25);
  }
}

// A stream that asks for many histories and never sends them delays only itself.
TEST_F(LedgerTest, StreamsFloodDelaysOnlyItself) {
  for (int i = 0; i < 10'000; ++i) Advice({1, 1});
  EXPECT_GE(Advice({1, 1}), absl::Seconds(30));
  EXPECT_EQ(Advice({1, 2}), absl::ZeroDuration()) << "another stream of the client";
  EXPECT_EQ(Advice({2, 3}), absl::ZeroDuration()) << "another client";
}

// This holds for a tenant with many streams too.
TEST_F(LedgerTest, TenantsFloodDelaysOnlyItself) {
  for (uint64_t stream = 0; stream < 500; ++stream) {
    for (int i = 0; i < 20; ++i) Advice({1, stream});
  }
  EXPECT_EQ(Advice({2, 1}), absl::ZeroDuration());
  const absl::Duration second = Advice({2, 1});
  EXPECT_GE(second, absl::Seconds(2));  // half of the budget
  EXPECT_LE(second, absl::Seconds(2) * 1.25);
}

// All streams together are advised to come no faster than the budget allows.
TEST_F(LedgerTest, SharesAddUpToTheBudget) {
  constexpr uint64_t kStreams = 8;
  for (uint64_t stream = 0; stream < kStreams; ++stream) Advice({stream % 2, stream});
  int soon = 0;
  for (uint64_t stream = 0; stream < kStreams; ++stream) {
    while (Advice({stream % 2, stream}) <= absl::Seconds(20) * 1.25) ++soon;
  }
  EXPECT_GE(soon, 10);
  EXPECT_LE(soon, 20 + int(kStreams));  // each stream came once before the others existed
}

// An open-ended history may be long, so it waits where a short one need not.
TEST_F(LedgerTest, UnknownLengthIsEstimated) {
  ledger_.SpendHistory(kTokens / 10, false);
  EXPECT_FALSE(ledger_.Admit({1, 1}, 10, false));
  for (int i = 0; i < 100; ++i) {
    const std::optional<Refusal> refusal = ledger_.Admit({1, 1}, 10, true);
    ASSERT_TRUE(refusal);
    EXPECT_GE(refusal->retry_after, absl::Milliseconds(100));
    EXPECT_LE(refusal->retry_after, absl::Milliseconds(101) * 1.25) << i;
  }
  for (int i = 0; i < 100; ++i) ledger_.Completed(kTokens);
  ledger_.Admit({1, 1}, 10, true);
  EXPECT_GE(ledger_.Admit({1, 1}, 10, true)->retry_after, absl::Seconds(1));
}

TEST_F(LedgerTest, ExpiredWaitersAreForgotten) {
  for (int i = 0; i < 10'000; ++i) Advice({1, 1});
  clock_.Advance(absl::Seconds(31));
  EXPECT_EQ(Advice({2, 2}), absl::ZeroDuration());
  const absl::Duration second = Advice({2, 2});
  EXPECT_GE(second, absl::Seconds(1));  // the whole budget
  EXPECT_LE(second, absl::Seconds(1) * 1.25);
}

// A stream pauses for as long as its piece took. While many do long work, they have half of a thread together.
TEST_F(LedgerTest, PiecesTakeHalfOfAThread) {
  constexpr uint64_t kPiece = 5'000'000;  // nanoseconds
  EXPECT_EQ(ledger_.PauseAfter(kPiece), absl::Nanoseconds(kPiece));
  absl::Duration pause;
  for (int streams = 1; streams < 100; ++streams) pause = ledger_.PauseAfter(kPiece);
  EXPECT_EQ(pause, absl::Nanoseconds(2 * 100 * kPiece) - absl::Milliseconds(50));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(ledger_.PauseAfter(kPiece), absl::Nanoseconds(kPiece));
}

}  // namespace
}  // namespace sortition::service::ledger_test
