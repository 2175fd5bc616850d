// What a client knows of one sequence's tokens: the position, the history where the service looks at it, and rewrites
// not yet sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "service/sequence/history_hash.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// Not thread-safe. Until Identify or KeepNothing has been called it is not known whether tokens are needed, so they are
// kept.
class History {
 public:
  explicit History(std::vector<uint32_t> prompt);
  // Without tokens; good for KeepNothing only.
  explicit History(uint32_t position) : position_(position), prompt_length_(position) {}
  // What a fork of `parent` at `position` starts from; its identity is its own.
  static History ForkOf(const History& parent, uint32_t position);

  // The service looks at no history: only the position is kept from now on.
  void KeepNothing();
  // The service looks at the history, and this is the digest of the sequence's identity (proto/history_hash.md).
  void Identify(uint64_t digest);
  // The service holds exactly this history.
  void Anchor();
  // Needs Identify.
  uint64_t hash() const;
  // Another number after every change of the tokens.
  uint64_t version() const { return version_; }

  uint32_t position() const { return position_; }
  uint32_t prompt_length() const { return prompt_length_; }
  const std::vector<uint32_t>& tokens() const { return tokens_; }  // empty after KeepNothing
  bool keeps_tokens() const { return keeps_tokens_; }
  // Whether all of them are there.
  bool has_tokens() const { return keeps_tokens_ && tokens_.size() == position_; }

  // The service answered a step that leaves the text as it is.
  void Scored() { ++turns_; }
  // How often the text was cut or scored; with the position it names a step, the same on every rank.
  uint32_t turns() const { return turns_; }
  void SetTurns(uint32_t turns) { turns_ = turns; }
  uint64_t step_id() const { return uint64_t{turns_} << 32 | (position_ + 1); }

  // How many of the tokens the service has too.
  uint32_t shared() const { return shared_; }

  // Rewrites by the caller; they reach the service with the next step. OUT_OF_RANGE if there is nothing to replace or
  // cut.
  absl::Status ReplaceLast(uint32_t token);
  void Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);

  // The service answered the step that was described last with these tokens.
  void Drawn(std::span<const uint32_t> tokens);
  void Drawn(uint32_t token) { Drawn(std::span(&token, 1)); }

  // Whether the service has said what it looks at.
  bool CanDescribe() const { return !keeps_tokens_ || digest_.has_value(); }
  // Sets position, hash and rewrites of the next step. Needs CanDescribe().
  void DescribeStep(v1::StepRow* row) const;

 private:
  void ExtendChain(uint32_t from);

  std::vector<uint32_t> tokens_;
  uint32_t position_;
  uint32_t prompt_length_;
  bool keeps_tokens_ = true;
  uint64_t version_ = 0;
  uint32_t turns_ = 0;

  std::optional<uint64_t> digest_;
  // Once there is a digest: the chain over all tokens, and marks_[i] that over the first i * kMarkSpacing of them, so
  // that a cut costs no more than so many tokens.
  uint64_t chain_ = service::kEmptyHash;
  std::vector<uint64_t> marks_;
  // The service holds `service_position_` tokens, of which the first `shared_` are ours too.
  uint32_t service_position_ = 0;
  uint32_t shared_ = 0;
};

}  // namespace sortition::client
