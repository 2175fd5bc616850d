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
#include "service/sequence/sequence.h"

namespace sortition::service {

// Those of one stream. At most `stream_sequences` of them at once, with `max_history` tokens all together. Not
// thread-safe.
class PartialHistories {
 public:
  explicit PartialHistories(const Limits& limits) : limits_(limits) {}

  // Adds the history piece of an open, which has one. Returns the whole history once it is complete, null while more
  // pieces are to come. A piece at offset 0 starts anew. A refusal drops what has come so far.
  std::variant<std::unique_ptr<SequenceHistory>, Refusal> Add(OpenRequest* request);

  // Forgets what has come for `request_id`, if anything.
  void Drop(const std::string& request_id);

 private:
  struct Partial {
    uint64_t epoch = 0;
    uint32_t live_vocabulary = 0;  // that the tokens have been checked against
    SequenceHistory history;
  };

  const Limits limits_;
  absl::flat_hash_map<std::string, Partial> partials_;  // by request_id
  uint64_t tokens_ = 0;                                 // of all partials together
};

}  // namespace sortition::service
