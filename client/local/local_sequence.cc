// The public handle of a sequence in this process.
#include "sortition/local_sequence.h"

#include <utility>

#include "client/local/local_text.h"

namespace sortition::client {

LocalSequence::LocalSequence(std::unique_ptr<LocalText> own) : own_(std::move(own)) {}

LocalSequence::~LocalSequence() = default;

absl::StatusOr<std::unique_ptr<LocalSequence>> LocalSequence::Open(const SequenceOptions& options) {
  auto own = LocalText::Open(options);
  if (!own.ok()) return own.status();
  return std::unique_ptr<LocalSequence>(new LocalSequence(*std::move(own)));
}

absl::StatusOr<std::unique_ptr<LocalSequence>> LocalSequence::Fork(SequenceOptions options,
                                                                   std::optional<uint32_t> position) const {
  auto child = own_->Fork(std::move(options), position);
  if (!child.ok()) return child.status();
  return std::unique_ptr<LocalSequence>(new LocalSequence(*std::move(child)));
}

std::unique_ptr<LocalSequence> LocalSequence::Clone() const {
  return std::unique_ptr<LocalSequence>(new LocalSequence(own_->Clone()));
}

RowResult LocalSequence::Step(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  return own_->Step(dtype, row, options);
}

uint32_t LocalSequence::vocabulary_size() const { return own_->vocabulary_size(); }
uint64_t LocalSequence::seed() const { return own_->seed(); }
bool LocalSequence::stateful() const { return own_->stateful(); }
uint32_t LocalSequence::position() const { return own_->position(); }
std::vector<uint32_t> LocalSequence::tokens() const { return own_->tokens(); }

absl::Status LocalSequence::ReplaceLast(uint32_t token) { return own_->ReplaceLast(token); }
absl::Status LocalSequence::Append(std::span<const uint32_t> tokens) { return own_->Append(tokens); }
absl::Status LocalSequence::Truncate(uint32_t position) { return own_->Truncate(position); }

}  // namespace sortition::client
