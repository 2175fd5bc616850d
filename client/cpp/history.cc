// Rewrites a history, and keeps the running hash over it.
#include "client/cpp/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

constexpr uint32_t kMarkSpacing = 64;

}  // namespace

History::History(std::vector<uint32_t> prompt)
    : tokens_(std::move(prompt)), position_(static_cast<uint32_t>(tokens_.size())), prompt_length_(position_) {}

History History::MakeFork(const History& parent, uint32_t position) {
  History child(position);
  if (parent.keeps_tokens_) {
    child = History(std::vector<uint32_t>(parent.tokens_.begin(), parent.tokens_.begin() + position));
    child.prompt_length_ = std::min(parent.prompt_length_, position);
  }
  child.rewinds_ = parent.rewinds_.OfFork();
  return child;
}

void History::KeepNothing() {
  keeps_tokens_ = false;
  tokens_ = {};
  marks_ = {};
  digest_.reset();
}

void History::Identify(uint64_t digest) {
  SORTITION_CHECK(has_tokens());
  digest_ = digest;
  if (!marks_.empty()) return;
  marks_.push_back(running_hash_);
  ExtendHash(0);
}

// Extends the running hash over the tokens from position `from`.
void History::ExtendHash(uint32_t from) {
  for (uint32_t at = from; at < position_; ++at) {
    running_hash_ = service::ExtendTokenHash(running_hash_, tokens_[at]);
    if ((at + 1) % kMarkSpacing == 0) marks_.push_back(running_hash_);
  }
}

void History::Anchor() { service_position_ = shared_ = position_; }

uint64_t History::hash() const { return service::HistoryHash(running_hash_, prompt_length_, *digest_); }

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
  const uint32_t from = static_cast<uint32_t>(tokens_.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (digest_) ExtendHash(from);
}

absl::Status History::Truncate(uint32_t position) {
  if (position > position_) {
    return absl::OutOfRangeError(
        absl::StrCat("Truncate: position ", position, " is beyond the end (<= ", position_, ")"));
  }
  if (position == position_) return absl::OkStatus();
  rewinds_.Truncate(position);
  ++version_;
  ++turns_;
  position_ = position;
  if (!keeps_tokens_) return absl::OkStatus();
  tokens_.resize(position);
  // If the prompt is cut, its rest is the prompt.
  prompt_length_ = std::min(prompt_length_, position);
  shared_ = std::min(shared_, position);
  if (digest_) {
    marks_.resize(position / kMarkSpacing + 1);
    running_hash_ = marks_.back();
    for (uint32_t at = position / kMarkSpacing * kMarkSpacing; at < position; ++at) {
      running_hash_ = service::ExtendTokenHash(running_hash_, tokens_[at]);
    }
  }
  return absl::OkStatus();
}

void History::Rewind(uint32_t position, uint32_t token) {
  if (rewinds_.Ban(position, token)) SORTITION_CHECK(Truncate(position).ok());
}

void History::Drawn(std::span<const uint32_t> tokens) {
  Append(tokens);
  service_position_ = shared_ = position_;
}

void History::DescribeStep(v1::StepRow* row) const {
  SORTITION_CHECK(CanDescribe());
  row->set_position(position_);
  row->clear_truncate_to();
  row->clear_append_tokens();
  if (!keeps_tokens_) return;
  row->set_history_hash(hash());
  if (shared_ < service_position_) row->set_truncate_to(shared_);
  row->mutable_append_tokens()->Add(tokens_.begin() + shared_, tokens_.end());
}

}  // namespace sortition::client
