// A caller's handle of one sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/sequence_record.h"

namespace sortition::client {

class ClientCore;

// Thread-safe; no method blocks for longer than a copy. Destroying it tells the service to forget the sequence; it must
// outlive its steps, and may outlive the client.
//
// The handle advances by exactly one token with every row answered with a token, whatever was lost or repeated on the
// way, and by nothing else but the caller's own rewrites. Rewrites reach the service with the next step; while a step
// is in flight they are refused with FAILED_PRECONDITION.
class Sequence {
 public:
  Sequence(std::shared_ptr<ClientCore> core, std::shared_ptr<SequenceRecord> record);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const std::string& request_id() const { return record_->options.request_id; }
  uint32_t vocabulary_size() const { return record_->options.vocabulary_size; }
  // The seed in force. A secret: whoever knows it and the logits knows the text.
  uint64_t seed() const;
  // Whether some option looks at the history, so that the service and this handle keep it.
  bool stateful() const;
  // Tokens of prompt and output so far: where the next token stands.
  uint32_t position() const;
  // These tokens; empty if the sequence is not stateful.
  std::vector<uint32_t> tokens() const;

  // How often the text was cut or scored. Ranks of one text (ClientOptions::shard) have the same.
  uint32_t turns() const;

  // The caller's own choices, between steps. OUT_OF_RANGE if a token is not below the live vocabulary, or if there is
  // nothing to replace or cut. A cut into the prompt, or by more than the service keeps, costs a replay.
  absl::Status ReplaceLast(uint32_t token);
  absl::Status Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);

 private:
  friend class ClientCore;
  absl::Status CheckToken(uint32_t token) const;
  // What a fork starts from.
  absl::StatusOr<History> ForkHistory(std::optional<uint32_t> position) const;
  absl::Status CheckNoStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mutex);

  const std::shared_ptr<ClientCore> core_;
  const std::shared_ptr<SequenceRecord> record_;
};

}  // namespace sortition::client
