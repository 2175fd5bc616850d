// The caller's handle of one sequence.
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

// Thread-safe. No method blocks for longer than a copy. Its destruction tells the service to forget the sequence. It
// must outlive its steps, and may outlive the client.
//
// The handle advances by exactly one token with each result that is a token, even if messages are lost or repeated.
// Only the caller's rewrites change it otherwise. Rewrites reach the service with the next step. While a step is in
// flight they are refused with FAILED_PRECONDITION.
class Sequence {
 public:
  Sequence(std::shared_ptr<ClientCore> core, std::shared_ptr<SequenceRecord> record);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const std::string& request_id() const { return record_->options.request_id; }
  uint32_t vocabulary_size() const { return record_->options.vocabulary_size; }
  // The seed in use. Keep it secret: seed and logits together determine the text.
  uint64_t seed() const;
  // True if some option looks at the history, so that the service and this handle keep it.
  bool stateful() const;
  // Number of tokens in prompt and output so far: the position of the next token.
  uint32_t position() const;
  // The tokens of prompt and output; empty if the sequence is not stateful.
  std::vector<uint32_t> tokens() const;

  // Number of times that the text was cut or scored. It is the same on all ranks of a text (ClientOptions::shard).
  uint32_t turns() const;

  // Rewrites by the caller, between steps. OUT_OF_RANGE if a token is not below the live vocabulary, or if there is
  // nothing to replace or cut. A cut into the prompt, or by more than the service keeps, costs a replay.
  absl::Status ReplaceLast(uint32_t token);
  absl::Status Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);

 private:
  friend class ClientCore;
  absl::Status CheckToken(uint32_t token) const;
  // Returns the history that a fork at `position` starts with.
  absl::StatusOr<History> ForkHistory(std::optional<uint32_t> position) const;
  absl::Status CheckNoStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mutex);

  const std::shared_ptr<ClientCore> core_;
  const std::shared_ptr<SequenceRecord> record_;
};

}  // namespace sortition::client
