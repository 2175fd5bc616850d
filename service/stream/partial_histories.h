// Histories that come in several messages, until they are whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/request/open_request.h"
#include "service/sequence/replay_budget.h"
#include "service/sequence/sequence_state.h"
#include "service/stream/stream_memory.h"

namespace sortition::service {

// Those of one stream. At most `stream_sequences` of them at once, with `max_history` tokens all together, and within
// the stream's memory; a history is never held as a whole, each piece becomes part of the state at once. Not
// thread-safe.
class PartialHistories {
 public:
  // `replays` and `memory` are not owned and outlive this.
  PartialHistories(const Limits& limits, ReplayBudget* replays, StreamMemory* memory)
      : limits_(limits), replays_(*replays), memory_(*memory) {}

  // Adds the history piece of an open, which has one. Returns the whole history once it is complete, null while more
  // pieces are to come. A piece at offset 0 starts anew. A refusal drops what has come so far. `rows_wait`: for a
  // device, anywhere in the service.
  std::variant<std::unique_ptr<SequenceState::Builder>, Refusal> Add(const ReplayBudget::Owner& owner,
                                                                     OpenRequest* request, bool rows_wait);

  // The open was refused, and has one answer: the pieces of its history that follow are not looked at.
  void Skip(const std::string& request_id, uint64_t epoch);
  // Whether a piece is such a one.
  bool Skips(const std::string& request_id, uint64_t epoch, uint32_t offset, bool continues);

  // Forgets what has come for `request_id`, if anything.
  void Drop(const std::string& request_id);

 private:
  struct Partial {
    uint64_t epoch = 0;
    std::unique_ptr<SequenceState::Builder> builder;
    uint64_t bytes = 0;  // as last accounted
  };

  const Limits limits_;
  ReplayBudget& replays_;
  StreamMemory& memory_;
  absl::flat_hash_map<std::string, Partial> partials_;  // by request_id
  absl::flat_hash_map<std::string, uint64_t> skipped_;  // epoch by request_id; at most stream_sequences
  uint64_t tokens_ = 0;                                 // of all partials together
};

}  // namespace sortition::service
