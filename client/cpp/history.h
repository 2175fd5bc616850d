// The client's knowledge of one sequence's tokens: the position, the history if the service looks at it, and the
// rewrites that were not sent yet.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/rewinds.h"
#include "service/text/history/history_hash.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// Not thread-safe. Keeps the tokens until Identify or KeepNothing says whether they are needed.
class History {
 public:
  explicit History(std::vector<uint32_t> prompt);
  // Makes a history without tokens, for which only KeepNothing may be called.
  explicit History(uint32_t position) : position_(position), prompt_length_(position) {}
  // Returns the history that a fork of `parent` at `position` starts with, without the parent's identity.
  static History MakeFork(const History& parent, uint32_t position);

  // Drops all tokens and keeps only the position, because the service looks at no history.
  void KeepNothing();
  // Sets the digest of the sequence's identity (proto/history_hash.md), because the service looks at the history.
  void Identify(uint64_t digest);
  // Records that the service holds exactly this history.
  void Anchor();
  // Returns the history hash. Needs Identify.
  uint64_t hash() const;
  // Changes with every change of the tokens.
  uint64_t version() const { return version_; }

  uint32_t position() const { return position_; }
  uint32_t prompt_length() const { return prompt_length_; }
  const std::vector<uint32_t>& tokens() const { return tokens_; }  // empty after KeepNothing
  bool keeps_tokens() const { return keeps_tokens_; }
  // True if all tokens are kept.
  bool has_tokens() const { return keeps_tokens_ && tokens_.size() == position_; }

  // Records a score, which leaves the text unchanged.
  void Scored() { ++turns_; }
  // Number of times that the text was cut or scored. With the position it names a step, equally on every rank.
  uint32_t turns() const { return turns_; }
  void SetTurns(uint32_t turns) { turns_ = turns; }
  uint64_t step_id() const { return uint64_t{turns_} << 32 | (position_ + 1); }

  // Number of leading tokens that the service has, too.
  uint32_t shared() const { return shared_; }

  // Rewrites by the caller, which reach the service with the next step. OUT_OF_RANGE if there is nothing to replace or
  // cut.
  absl::Status ReplaceLast(uint32_t token);
  void Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);

  // Takes back the tokens from `position`, and bans the first of them, `token`, there. Does nothing if it was banned
  // there already (Rewinds).
  void Rewind(uint32_t position, uint32_t token);
  const Rewinds& rewinds() const { return rewinds_; }
  void SetRewinds(Rewinds rewinds) { rewinds_ = std::move(rewinds); }

  // Records the tokens in the service's answer to the step that was described last.
  void Drawn(std::span<const uint32_t> tokens);
  void Drawn(uint32_t token) { Drawn(std::span(&token, 1)); }

  // True if the service has said whether it looks at the history.
  bool CanDescribe() const { return !keeps_tokens_ || digest_.has_value(); }
  // Sets position, hash and rewrites of the next step. Needs CanDescribe().
  void DescribeStep(v1::StepRow* row) const;

 private:
  void ExtendHash(uint32_t from);

  Rewinds rewinds_;
  std::vector<uint32_t> tokens_;
  uint32_t position_;
  uint32_t prompt_length_;
  bool keeps_tokens_ = true;
  uint64_t version_ = 0;
  uint32_t turns_ = 0;

  std::optional<uint64_t> digest_;
  // Valid once there is a digest: the running hash over all tokens. marks_[i] is the hash over the first i *
  // kMarkSpacing tokens, so a cut hashes at most kMarkSpacing tokens again.
  uint64_t running_hash_ = service::kEmptyHash;
  std::vector<uint64_t> marks_;
  // The service holds `service_position_` tokens. Its first `shared_` tokens are also the first ones here.
  uint32_t service_position_ = 0;
  uint32_t shared_ = 0;
};

}  // namespace sortition::client
