// Edits of a history and the hash chain over it.
#include "client/cpp/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/sequence/history_hash.h"

namespace sortition::client {

History::History(std::vector<uint32_t> prompt)
    : tokens_(std::move(prompt)), position_(static_cast<uint32_t>(tokens_.size())), prompt_length_(position_) {}

void History::KeepNothing() {
  keeps_tokens_ = false;
  tokens_ = {};
  hashes_ = {};
  hash_.reset();
}

void History::Anchor(uint64_t hash) {
  SORTITION_CHECK(keeps_tokens_);
  first_hash_ = position_;
  hashes_.clear();
  hash_ = hash;
  service_position_ = shared_ = position_;
}

absl::Status History::ReplaceLast(uint32_t token) {
  if (position_ == 0) return absl::OutOfRangeError("ReplaceLast: the history is empty");
  if (absl::Status status = Truncate(position_ - 1); !status.ok()) return status;
  Append({&token, 1});
  return absl::OkStatus();
}

void History::Append(std::span<const uint32_t> tokens) {
  ++version_;
  position_ += static_cast<uint32_t>(tokens.size());
  if (!keeps_tokens_) return;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (!hash_) return;
  for (uint32_t token : tokens) {
    hashes_.push_back(*hash_);
    hash_ = service::ExtendHistoryHash(*hash_, token);
  }
}

absl::Status History::Truncate(uint32_t position) {
  if (position > position_) {
    return absl::OutOfRangeError(
        absl::StrCat("Truncate: position ", position, " is beyond the end (<= ", position_, ")"));
  }
  if (position == position_) return absl::OkStatus();
  ++version_;
  position_ = position;
  if (!keeps_tokens_) return absl::OkStatus();
  tokens_.resize(position);
  // The service never cuts into a prompt, so that its scopes stay what they were; a replay makes what is left the
  // prompt.
  const bool cuts_prompt = position < prompt_length_;
  prompt_length_ = std::min(prompt_length_, position);
  shared_ = std::min(shared_, position);
  if (hash_ && position >= first_hash_ && !cuts_prompt) {
    hash_ = hashes_[position - first_hash_];
    hashes_.resize(position - first_hash_);
  } else {
    hash_.reset();
    hashes_.clear();
  }
  return absl::OkStatus();
}

void History::Drawn(uint32_t token) {
  Append({&token, 1});
  service_position_ = shared_ = position_;
}

void History::DescribeStep(v1::StepRow* row) const {
  SORTITION_CHECK(CanDescribe());
  row->set_position(position_);
  row->clear_truncate_to();
  row->clear_append_tokens();
  if (!keeps_tokens_) return;
  row->set_history_hash(*hash_);
  if (shared_ < service_position_) row->set_truncate_to(shared_);
  row->mutable_append_tokens()->Add(tokens_.begin() + shared_, tokens_.end());
}

}  // namespace sortition::client
