// Exported states that come back in several messages, until they are whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Those of one stream; at most `max_message_bytes` of them all together. Not thread-safe.
class PartialSnapshots {
 public:
  explicit PartialSnapshots(const Limits& limits) : limits_(limits) {}

  // Adds a piece. Returns the whole once it is complete. A refusal drops what has come so far.
  std::variant<std::optional<std::string>, Refusal> Add(const v1::ImportSequence& piece);

  // The import was refused, and has one answer: pieces of the same epoch that follow are not looked at.
  void Skip(const v1::OpenSequence& open);
  bool Skips(const v1::ImportSequence& piece);

  // Forgets what has come for `request_id`, if anything.
  void Drop(const std::string& request_id);

 private:
  struct Partial {
    uint64_t epoch = 0;
    bool skipped = false;
    std::string bytes;
  };

  const Limits limits_;
  absl::flat_hash_map<std::string, Partial> partials_;  // by request_id; at most stream_sequences
  uint64_t bytes_ = 0;                                  // of all partials together
};

}  // namespace sortition::service
