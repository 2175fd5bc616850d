// The rules of steps and retries for one sequence.
#include "service/sequence/sequence.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {
namespace {

Refusal HistoryRequired(std::string field, std::string limit, std::string message) {
  return Refusal{Reason::kHistoryRequired, std::move(field), std::move(limit), std::move(message)};
}

Refusal NoHistory(std::string field) {
  return HistoryRequired(std::move(field), "", "the server does not have the history of this sequence");
}

// Returns the positions to which a history can be cut or from which it can be forked.
std::string KeptPositions(const Text& state) { return absl::StrCat(state.lowest_truncation(), "..", state.position()); }

std::string KeptTokens(const Text& state) {
  return absl::StrCat("the history has ", state.position(), " tokens, and the server keeps those from ",
                      state.lowest_truncation(), " on");
}

// Returns true if states built under the two specs are equal. Compares by value: a worker can choose seeds that make
// the hashes of the empty history equal.
bool SameState(const SequenceSpec& a, const SequenceSpec& b) {
  return a.law_version == b.law_version && a.seed == b.seed && a.choice_index == b.choice_index &&
         a.vocabulary == b.vocabulary && a.live_vocabulary == b.live_vocabulary &&
         a.repetition_penalty == b.repetition_penalty && a.frequency_penalty == b.frequency_penalty &&
         a.presence_penalty == b.presence_penalty && a.listed_edits == b.listed_edits && a.history == b.history;
}

// Returns the memory of a result outside the object itself.
uint64_t BytesOf(const RowResult& result) {
  uint64_t bytes = (result.phases.capacity() + result.end.phrase.capacity()) * sizeof(uint32_t);
  for (const kernels::RowOutput& row : result.outputs) {
    bytes += sizeof(row);
    for (const kernels::Distribution& distribution :
         {std::cref(row.raw), std::cref(row.processed), std::cref(row.tempered)}) {
      bytes += distribution.top.capacity() * sizeof(kernels::TokenBits);
      bytes += distribution.requested.capacity() * sizeof(kernels::TokenPlace);
    }
    bytes += row.kept_tokens.capacity() * sizeof(kernels::TokenBits);
  }
  return bytes;
}

}  // namespace

Sequence::Sequence(SequenceOwner owner, std::shared_ptr<const SequenceSpec> spec, uint32_t kept_history)
    : kept_history_(kept_history), owner_(owner), spec_(std::move(spec)), spec_bytes_(spec_->bytes()) {}

Refusal Sequence::Superseded(std::string field) const {
  return Refusal{Reason::kSuperseded, std::move(field), absl::StrCat("> ", owner_.epoch),
                 absl::StrCat("the sequence is owned by epoch ", owner_.epoch)};
}

std::variant<SequencePosition, Refusal> Sequence::TakeOver(const SequenceOwner& owner,
                                                           std::shared_ptr<const SequenceSpec> spec,
                                                           std::unique_ptr<Text>* replayed,
                                                           std::unique_ptr<Text>* replaced) {
  absl::MutexLock lock(&mutex_);
  if (retired_) return NoHistory("open.history");
  const bool raised = owner.epoch > owner_.epoch;
  if (!raised && owner != owner_) return Superseded("open.epoch");
  if (in_flight_ && !raised) {
    return Refusal{Reason::kStepInFlight, "open", "", "a step of this sequence has not been answered yet"};
  }
  owner_ = owner;
  if (in_flight_) {
    // Abandons the former owner's step: the state is as before it, and its output is ignored. The device may still
    // read the lent edits.
    state_->LeaveLoan();
    state_->Revert(in_flight_->undo);
    in_flight_.reset();
  }
  if (replayed != nullptr || (state_ && !SameState(*spec, *spec_))) *replaced = std::move(state_);
  if (replayed != nullptr) state_ = std::move(*replayed);
  if (replayed != nullptr || !state_ || *spec != *spec_) last_.reset();
  spec_ = std::move(spec);
  spec_bytes_ = spec_->bytes();
  if (!state_) return NoHistory("open.history");
  return SequencePosition{state_->position(), state_->history_hash(), last_ ? last_->step_id : 0};
}

std::optional<Refusal> Sequence::CheckRewrites(const StepIntent& intent, Bill* bill) const {
  if (intent.truncate_to &&
      (*intent.truncate_to > state_->position() || *intent.truncate_to < state_->lowest_truncation())) {
    return HistoryRequired("truncate_to", KeptPositions(*state_), KeptTokens(*state_));
  }
  if (intent.append_tokens.size() > kept_history_) {
    return HistoryRequired("append_tokens", Bound{"kept_history", kept_history_}.Text(),
                           absl::StrCat("has ", intent.append_tokens.size(),
                                        " tokens; so many are sent in an open, as part of the history"));
  }
  const uint32_t removed = intent.truncate_to ? state_->position() - *intent.truncate_to : 0;
  const uint64_t rewritten = removed + intent.append_tokens.size();
  if (bill == nullptr || bill->Take(price::kRewrittenToken * RewriteTimes(*spec_) * rewritten)) return std::nullopt;
  Refusal refusal = bill->TooMuch(removed > 0 ? "truncate_to" : "append_tokens");
  refusal.reason = Reason::kHistoryRequired;  // a history is taken in pieces
  return refusal;
}

std::variant<StepGrant, RepeatedResult, Refusal> Sequence::Begin(const SequenceOwner& owner, const StepIntent& intent,
                                                                 const TokenTree& ahead, Bill* bill) {
  absl::MutexLock lock(&mutex_);
  if (owner != owner_) return Superseded("");
  if (in_flight_) return Refusal{Reason::kStepInFlight, "step_id", "", "the step before has not been answered yet"};
  if (last_ && intent.step_id == last_->step_id) {
    if (intent.options_digest == last_->digest) {
      if (last_->result != nullptr) {
        if (bill != nullptr) bill->Add(price::kAnswerByte * last_->bytes);
        return RepeatedResult{last_->result, last_->bytes};
      }
      return HistoryRequired("step_id", Bounds::max_repeated_bytes().Text(),
                             "the step has been answered, with more than is kept for a repetition");
    }
    return Refusal{Reason::kStepConflict, "step_id", absl::StrCat("> ", last_->step_id),
                   "a step of this id has been answered, with other options"};
  }
  if (last_ && intent.step_id < last_->step_id) {
    return Refusal{Reason::kStaleStep, "step_id", absl::StrCat("> ", last_->step_id), "a later step has been answered"};
  }
  if (!state_) return NoHistory("request_id");
  if (auto refusal = CheckRewrites(intent, bill)) return *std::move(refusal);
  const bool is_rewritten = intent.truncate_to || !intent.append_tokens.empty();
  Text::Undo undo = state_->Rewrite(intent.truncate_to, intent.append_tokens);
  if (state_->position() != intent.position || state_->history_hash() != intent.history_hash) {
    const uint32_t position = state_->position();
    state_->Revert(undo);
    const absl::string_view rewritten = is_rewritten ? ", after the row's rewrites" : "";
    if (position != intent.position) {
      return HistoryRequired("position", absl::StrCat(position),
                             absl::StrCat("the history that the server has is ", position, " tokens long", rewritten));
    }
    return HistoryRequired("history_hash", absl::StrCat("the hash of the server's ", position, " tokens"),
                           absl::StrCat("the server has another history of ", position, " tokens", rewritten));
  }
  // If the worker has rewritten its text since the last answer, in this step, in a history or elsewhere, only the
  // worker knows which sampler state it continues from.
  const bool follows = last_ && last_->step_id + 1 == intent.step_id && !is_rewritten;
  if (intent.checkpoint && follows && intent.checkpoint != TextPlace{intent.position, *intent.history_hash}) {
    return Refusal{
        Reason::kCheckpointRefused, "checkpoint", absl::StrCat("position ", intent.position),
        absl::StrCat("is of the step before position ", intent.checkpoint->position, ", or of another text")};
  }
  PositionViews views = LookAhead(state_.get(), ahead, intent.edits_use, bill);
  if (views.size() <= ahead.tokens.size()) {
    state_->EndLoan();
    state_->Revert(undo);
    return bill->TooMuch("position");
  }
  in_flight_ = InFlight{next_ticket_++, intent.step_id, intent.options_digest, std::move(undo),
                        BytesAhead(views, intent.edits_use)};
  return StepGrant{in_flight_->ticket, std::move(views)};
}

std::variant<RowResult, Refusal> Sequence::Commit(uint64_t ticket, RowResult result) {
  absl::MutexLock lock(&mutex_);
  if (retired_) return ClosedInFlight();
  if (!in_flight_ || in_flight_->ticket != ticket) return Superseded("");
  SORTITION_CHECK(state_ != nullptr);
  state_->Commit(&result);
  last_ = LastStep{in_flight_->step_id, in_flight_->digest, nullptr, BytesOf(result)};
  if (last_->bytes <= kMaxRepeatedBytes) last_->result = std::make_shared<const RowResult>(result);
  in_flight_.reset();
  return result;
}

Refusal Sequence::ClosedInFlight() {
  return {Reason::kStepCancelled, "", "", "the sequence was closed while the step was in flight"};
}

void Sequence::Abort(uint64_t ticket) {
  absl::MutexLock lock(&mutex_);
  if (!in_flight_ || in_flight_->ticket != ticket) return;
  state_->EndLoan();
  state_->Revert(in_flight_->undo);
  in_flight_.reset();
}

std::variant<std::unique_ptr<Text>, Refusal> Sequence::Fork(const SequenceOwner& owner,
                                                            std::shared_ptr<const SequenceSpec> spec,
                                                            std::optional<uint32_t> position, Bill* bill) {
  absl::MutexLock lock(&mutex_);
  if (owner != owner_) return Superseded("");
  if (in_flight_) return Refusal{Reason::kStepInFlight, "", "", "a step of this sequence has not been answered yet"};
  if (!state_) return NoHistory("");
  const uint32_t at = position.value_or(state_->position());
  if (at < state_->lowest_truncation() || at > state_->position()) {
    return HistoryRequired("position", KeptPositions(*state_), KeptTokens(*state_));
  }
  if (!bill->Take(state_->ForkCost(*spec, at))) {
    return HistoryRequired("", Bounds::max_piece_work().Text(),
                           absl::StrCat("the fork of ", at, " tokens asks for more work; send the history"));
  }
  std::unique_ptr<Text> child = state_->Fork(std::move(spec), at);
  if (child == nullptr) {
    return HistoryRequired("", "", "the child's options look at more of the history than the server keeps");
  }
  return child;
}

std::optional<Refusal> Sequence::RetireUpTo(uint64_t epoch, std::unique_ptr<Text>* state) {
  absl::MutexLock lock(&mutex_);
  if (owner_.epoch > epoch) {
    Refusal refusal = Superseded("close.epoch");
    refusal.limit = absl::StrCat(">= ", owner_.epoch);
    return refusal;
  }
  *state = RetireLocked();
  return std::nullopt;
}

bool Sequence::RetireIfIdle(std::unique_ptr<Text>* state) {
  if (!mutex_.TryLock()) return false;
  const bool is_idle = !in_flight_;
  if (is_idle) *state = RetireLocked();
  mutex_.Unlock();
  return is_idle;
}

std::unique_ptr<Text> Sequence::RetireLocked() {
  retired_ = true;
  in_flight_.reset();
  last_.reset();
  return std::move(state_);
}

bool Sequence::retired() const {
  absl::MutexLock lock(&mutex_);
  return retired_;
}

uint64_t Sequence::bytes() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = sizeof(*this) + spec_bytes_;
  if (state_) bytes += state_->bytes();
  if (in_flight_) bytes += in_flight_->view_bytes;
  if (last_ && last_->result != nullptr) bytes += sizeof(RowResult) + last_->bytes;
  return bytes;
}

}  // namespace sortition::service
