// Checkpoint: the state of samplers that depend on past probabilities, sealed and carried by the worker. The service
// keeps no copy and accepts only states that it has sealed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "service/entropy.h"
#include "service/refusal.h"

namespace sortition::service {

// The owner of a checkpoint. Refers to the caller's strings.
struct CheckpointOwner {
  std::string_view tenant;
  std::string_view worker_session;
  std::string_view request_id;
  uint64_t identity = 0;  // HistoryDigest; ties the checkpoint to one seed, vocabulary and set of options
};

// State that one step leaves for the next.
struct Checkpoint {
  uint64_t sampler_state = 0;
  uint32_t position = 0;      // the next step's, if the worker changes nothing
  uint64_t history_hash = 0;  // the history's at that position; 0 if the sequence keeps no state
  bool operator==(const Checkpoint&) const = default;
};

// Seals and opens checkpoints with HMAC-SHA-256. Replicas that share a key accept each other's checkpoints. The key is
// secret and never logged. Immutable; thread-safe.
class CheckpointKey {
 public:
  static constexpr size_t kLeastBytes = 32;

  // Makes a key of this process alone.
  static CheckpointKey Random(Entropy* entropy);
  // Makes a key from the content of a file that replicas share: kLeastBytes or more secret bytes.
  static absl::StatusOr<CheckpointKey> Of(std::string_view secret);
  // Makes a key that accepts checkpoints of any key: for a sampler inside the process of its only worker, which could
  // deceive only itself. Other processes cannot use its checkpoints.
  static CheckpointKey Trusting(Entropy* entropy);

  // Returns a few tens of bytes.
  std::string Seal(const CheckpointOwner& owner, const Checkpoint& checkpoint) const;
  // Returns CHECKPOINT_REFUSED, with `field`, if this is no checkpoint, was changed, or belongs to another owner or
  // key.
  std::variant<Checkpoint, Refusal> Open(const CheckpointOwner& owner, std::string_view sealed,
                                         const std::string& field) const;

 private:
  enum class Trust : uint8_t { kOwn, kShared, kAll };  // accepts its own, also other replicas' with the key, or any
  CheckpointKey(std::span<const uint8_t> secret, Trust trust);

  std::array<uint8_t, 32> key_;
  Trust trust_;
};

}  // namespace sortition::service
