// What a client knows of one sequence's tokens: the position, the history where the service looks at it, and edits not
// yet sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// Not thread-safe. Until Anchor or KeepNothing has been called it is not known whether tokens are needed, so they are
// kept.
class History {
 public:
  explicit History(std::vector<uint32_t> prompt);
  // Without tokens; good for KeepNothing only.
  explicit History(uint32_t position) : position_(position), prompt_length_(position) {}

  // The service looks at no history: only the position is kept from now on.
  void KeepNothing();
  // The service holds exactly this history, of this hash.
  void Anchor(uint64_t hash);
  // Another number after every change of the tokens.
  uint64_t version() const { return version_; }

  uint32_t position() const { return position_; }
  uint32_t prompt_length() const { return prompt_length_; }
  const std::vector<uint32_t>& tokens() const { return tokens_; }  // empty after KeepNothing
  bool keeps_tokens() const { return keeps_tokens_; }

  // Edits by the caller; they reach the service with the next step. OUT_OF_RANGE if there is nothing to replace or cut.
  absl::Status ReplaceLast(uint32_t token);
  void Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);

  // The service drew `token` for the step that was described last.
  void Drawn(uint32_t token);

  // False if only a replay can bring the service to this history: the hash is not known, or the cut goes into the
  // prompt.
  bool CanDescribe() const { return !keeps_tokens_ || hash_.has_value(); }
  // Sets position, hash and edits of the next step. Needs CanDescribe().
  void DescribeStep(v1::StepRow* row) const;

 private:
  std::vector<uint32_t> tokens_;
  uint32_t position_;
  uint32_t prompt_length_;
  bool keeps_tokens_ = true;
  uint64_t version_ = 0;

  // hashes_[i] is the hash of the first first_hash_ + i tokens, up to position_ - 1; hash_ is that of all of them.
  uint32_t first_hash_ = 0;
  std::vector<uint64_t> hashes_;
  std::optional<uint64_t> hash_;
  // The service holds `service_position_` tokens, of which the first `shared_` are ours too.
  uint32_t service_position_ = 0;
  uint32_t shared_ = 0;
};

}  // namespace sortition::client
