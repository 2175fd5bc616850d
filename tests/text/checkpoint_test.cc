// Checkpoints: one opens only with its key and for its sequence, and every bit counts.
#include "service/text/checkpoint.h"

#include <gtest/gtest.h>

namespace sortition::service::checkpoint_test {
namespace {

constexpr CheckpointOwner kOwner{"space", "worker", "request-1", 77};
constexpr Checkpoint kCheckpoint{0xfedcba9876543210u, 1'000'000, 0x0123456789abcdefu};

class NoEntropy : public Entropy {
 public:
  explicit NoEntropy(uint64_t word) : word_(word) {}
  uint64_t Draw() override { return word_++; }

 private:
  uint64_t word_;
};

CheckpointKey KeyOf(char byte) { return *CheckpointKey::Of(std::string(32, byte)); }

bool Opens(const CheckpointKey& key, const CheckpointOwner& owner, std::string_view sealed) {
  const auto opened = key.Open(owner, sealed, "step.rows[3].checkpoint");
  if (const auto* refusal = std::get_if<Refusal>(&opened)) {
    EXPECT_EQ(refusal->reason, Reason::kCheckpointRefused);
    EXPECT_EQ(refusal->field, "step.rows[3].checkpoint");
    return false;
  }
  EXPECT_EQ(std::get<Checkpoint>(opened), kCheckpoint);
  return true;
}

// A replica with the same key continues where another one was.
TEST(CheckpointKey, SharedKeyAcceptsOtherReplicas) {
  const std::string sealed = KeyOf('a').Seal(kOwner, kCheckpoint);
  EXPECT_TRUE(Opens(KeyOf('a'), kOwner, sealed));
  EXPECT_FALSE(Opens(KeyOf('b'), kOwner, sealed));
  EXPECT_LT(sealed.size(), 64u);
}

TEST(CheckpointKey, PrivateKeyRefusesOtherReplicas) {
  NoEntropy one(1), other(2);
  const std::string sealed = CheckpointKey::Random(&one).Seal(kOwner, kCheckpoint);
  const auto refused = CheckpointKey::Random(&other).Open(kOwner, sealed, "f");
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_NE(std::get<Refusal>(refused).message.find("--checkpoint_key"), std::string::npos);
  NoEntropy same(1);
  EXPECT_TRUE(Opens(CheckpointKey::Random(&same), kOwner, sealed));
}

// The key of an in-process service opens any checkpoint; no server accepts the checkpoints that it seals.
TEST(CheckpointKey, TrustingKeyOpensAllButIsTrustedByNone) {
  NoEntropy one(1);
  const CheckpointKey trusting = CheckpointKey::Trusting(&one);
  const std::string sealed = KeyOf('a').Seal(kOwner, kCheckpoint);
  EXPECT_TRUE(Opens(trusting, kOwner, sealed));
  EXPECT_TRUE(Opens(trusting, CheckpointOwner{"in-process", "worker", "request-1", 77}, sealed));
  EXPECT_FALSE(Opens(trusting, kOwner, sealed.substr(1)));
  EXPECT_FALSE(Opens(KeyOf('a'), kOwner, trusting.Seal(kOwner, kCheckpoint)));
}

TEST(CheckpointKey, EveryBitCounts) {
  const CheckpointKey key = KeyOf('k');
  const std::string sealed = key.Seal(kOwner, kCheckpoint);
  ASSERT_TRUE(Opens(key, kOwner, sealed));
  for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    std::string changed = sealed;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(Opens(key, kOwner, changed)) << bit;
  }
  for (size_t size = 0; size < sealed.size(); ++size) EXPECT_FALSE(Opens(key, kOwner, sealed.substr(0, size)));
  EXPECT_FALSE(Opens(key, kOwner, sealed + '\0'));
}

TEST(CheckpointKey, ForeignSequenceIsRefused) {
  const CheckpointKey key = KeyOf('k');
  const std::string sealed = key.Seal(kOwner, kCheckpoint);
  for (const CheckpointOwner& other :
       {CheckpointOwner{"other", "worker", "request-1", 77}, CheckpointOwner{"space", "other", "request-1", 77},
        CheckpointOwner{"space", "worker", "request-2", 77}, CheckpointOwner{"space", "worker", "request-1", 78},
        // The same letters, divided differently.
        CheckpointOwner{"spacew", "orker", "request-1", 77}, CheckpointOwner{"space", "workerr", "equest-1", 77}}) {
    EXPECT_FALSE(Opens(key, other, sealed)) << other.tenant << " " << other.worker_session;
  }
}

TEST(CheckpointKey, ShortSecretIsRefused) {
  EXPECT_FALSE(CheckpointKey::Of(std::string(31, 'x')).ok());
  EXPECT_TRUE(CheckpointKey::Of(std::string(32, 'x')).ok());
  EXPECT_FALSE(Opens(*CheckpointKey::Of(std::string(33, 'x')), kOwner,
                     CheckpointKey::Of(std::string(32, 'x'))->Seal(kOwner, kCheckpoint)));
}

}  // namespace
}  // namespace sortition::service::checkpoint_test
