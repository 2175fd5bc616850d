// Joins histories that come in several messages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "service/ledger.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/stream/stream_memory.h"
#include "service/text/text.h"
#include "service/wire/open_request.h"

namespace sortition::service {

// The unfinished histories of one stream: at most `stream_sequences`, with `max_history` tokens together, and within
// the stream's memory. Each piece becomes part of a state at once, so no history is held as a whole. Not thread-safe.
class PartialHistories {
 public:
  // `ledger` and `memory` are not owned and outlive this.
  PartialHistories(const Limits& limits, Ledger* ledger, StreamMemory* memory)
      : limits_(limits), ledger_(*ledger), memory_(*memory) {}
  ~PartialHistories();
  PartialHistories(const PartialHistories&) = delete;
  PartialHistories& operator=(const PartialHistories&) = delete;

  // Adds the history piece of an open, which has one. Returns the whole history once it is complete, null before. A
  // piece at offset 0 starts anew. A refusal drops the pieces that have come. `rows_wait` is true if rows of any stream
  // wait for a device.
  std::variant<std::unique_ptr<Text::Builder>, Refusal> Add(const Ledger::Owner& owner, OpenRequest* request,
                                                            bool rows_wait);

  // Takes note that the open was refused. The pieces of its history that follow are ignored, since it has one answer.
  void Skip(const std::string& request_id, uint64_t epoch);
  // Returns true if the piece is to be ignored.
  bool Skips(const std::string& request_id, uint64_t epoch, uint32_t offset, bool continues);

  // Returns the policy under which the history's first piece came; empty if none has come. A later piece has the same
  // one, even if the operator has changed it in between.
  std::optional<std::shared_ptr<const TenantPolicy>> FindPolicy(const std::string& request_id, uint64_t epoch) const;

  // Forgets the pieces that have come for `request_id` with at most this epoch. Returns false if there are none.
  bool Drop(const std::string& request_id, uint64_t epoch = UINT64_MAX);

 private:
  struct Partial {
    uint64_t epoch = 0;
    std::unique_ptr<Text::Builder> builder;
    std::shared_ptr<const TenantPolicy> rules;
    uint64_t bytes = 0;  // as last accounted
  };

  const Limits limits_;
  Ledger& ledger_;
  StreamMemory& memory_;
  absl::flat_hash_map<std::string, Partial> partials_;  // by request_id
  absl::flat_hash_map<std::string, uint64_t> skipped_;  // epoch by request_id; at most stream_sequences
  uint64_t tokens_ = 0;                                 // of all partials
};

}  // namespace sortition::service
