// The state of samplers that depend on past probabilities, on its way through the worker and back: the service keeps
// nothing, and takes back only what it gave.
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

// Whose checkpoint it is. Refers to its owner's strings.
struct CheckpointOwner {
  std::string_view tenant;
  std::string_view worker_session;
  std::string_view request_id;
  uint64_t identity = 0;  // HistoryDigest, so that it is one seed's, vocabulary's and set of options'
};

// What a step leaves for the next one.
struct Checkpoint {
  uint64_t sampler_state = 0;
  uint32_t position = 0;      // of the next step, if the worker changes nothing
  uint64_t history_hash = 0;  // of the history there; 0 if the sequence keeps no state
  bool operator==(const Checkpoint&) const = default;
};

// Seals and opens checkpoints with HMAC-SHA-256 under a key, which replicas that share it take from each other. A
// secret: never logged. Immutable; thread-safe.
class CheckpointKey {
 public:
  static constexpr size_t kLeastBytes = 32;

  // A key of this process alone.
  static CheckpointKey Random(Entropy* entropy);
  // The content of a file that replicas share: kLeastBytes or more bytes that nobody can guess.
  static absl::StatusOr<CheckpointKey> Of(std::string_view secret);
  // Takes what any key sealed: for a sampler in its only worker's process, which could deceive nobody but itself. Of no
  // use to anybody else.
  static CheckpointKey Trusting(Entropy* entropy);

  // A few tens of bytes.
  std::string Seal(const CheckpointOwner& owner, const Checkpoint& checkpoint) const;
  // CHECKPOINT_REFUSED, with `field`, for what is no checkpoint, was changed, or is another owner's or key's.
  std::variant<Checkpoint, Refusal> Open(const CheckpointOwner& owner, std::string_view sealed,
                                         const std::string& field) const;

 private:
  enum class Trust : uint8_t { kOwn, kShared, kAll };  // what it takes: its own, other replicas', anybody's
  CheckpointKey(std::span<const uint8_t> secret, Trust trust);

  std::array<uint8_t, 32> key_;
  Trust trust_;
};

}  // namespace sortition::service
