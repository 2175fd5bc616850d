// Opens sequences on a stream: how opens, forks and histories are sent, and how their answers are handled.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/message.h"
#include "client/cpp/stream_state.h"
#include "kernels/law/version.h"
#include "service/wire/compile_history_options.h"

namespace sortition::client {
namespace {

// Upper bounds on the encoded size of one token, and of what a history adds to an open besides its tokens.
constexpr uint64_t kTokenBytes = 5;
constexpr uint64_t kHistoryBytes = 48;

// True if the first open carries the history, because an option is known to look at it. Otherwise the service requests
// it.
bool SendsHistoryAtOnce(const SequenceOptions& options) {
  const v1::SamplingParameters& parameters = options.parameters;
  return !options.start_position && ((parameters.has_repetition_penalty() && parameters.repetition_penalty() != 1) ||
                                     parameters.frequency_penalty() != 0 || parameters.presence_penalty() != 0);
}

bool LooksAtHistory(const SequenceOptions& options) {
  return SendsHistoryAtOnce(options) || service::CompileHistoryOptions(options.parameters).on();
}

RowError PromptNeeded() {
  return RowError{absl::StatusCode::kInvalidArgument, v1::CONTRADICTION, "start_position", "",
                  "an option looks at the history, so the prompt is needed instead"};
}

// Returns the name of the operator's key that marks, or will mark, the text; empty if there is none.
const std::string& KeyIdOf(const SequenceRecord& record) {
  const std::string& known = record.policy.watermark_key_id();
  return known.empty() ? record.options.watermark_key_id : known;
}

// Returns the error of a sequence that the service's operator marks and that only this process could continue.
RowError KeyNeeded() {
  return RowError{absl::StatusCode::kFailedPrecondition, v1::CONTRADICTION, "watermark_key_id", "",
                  "only the service has the key that marks the text, so it waits for the service"};
}

// Returns why the sequence would not keep its tokens, if the operator's policy has changed since it was first opened.
// `digest`: its identity's at that time.
std::optional<RowError> PolicyChange(const v1::PolicyEffect& before, const v1::PolicyEffect& now, uint64_t digest) {
  std::string field;
  // The digest covers the width and the kind of a mark, which the client cannot see.
  if (now.has_history_digest() && now.history_digest() != digest) field = "open.parameters.watermark";
  if (now.watermark_key_id() != before.watermark_key_id()) field = "open.watermark_key_id";
  if (now.has_applied() || now.removed_size() > 0) field = "open.parameters";
  if (field.empty()) return std::nullopt;
  return RowError{absl::StatusCode::kFailedPrecondition, v1::CONTRADICTION, std::move(field), "",
                  "the operator's policy has changed since the sequence was opened, and would change its tokens"};
}

bool HasTokens(SequenceRecord* record) {
  absl::MutexLock lock(&record->mutex);
  return record->history.has_tokens();
}

// Returns the error of a sequence whose tokens were not kept, because no policy marked its text.
RowError MarkedLater() {
  return RowError{absl::StatusCode::kFailedPrecondition, v1::CONTRADICTION, "open.watermark_key_id", "",
                  "the operator's policy has changed since the sequence was opened, and marks its text now"};
}

RowError OpenTooLarge(uint64_t bytes, uint64_t most) {
  return RowError{absl::StatusCode::kInvalidArgument, v1::TOO_MANY, "open", absl::StrCat("<= ", most, " bytes"),
                  absl::StrCat("a message that opens the sequence has ", bytes, " bytes without tokens")};
}

RowError ServerMistake(std::string message) {
  return RowError{absl::StatusCode::kInternal, v1::ERROR_REASON_UNSPECIFIED, "", "", std::move(message)};
}

}  // namespace

// Returns true if rows of the sequence can be sent now. Otherwise opens the sequence, as far as that is possible now.
bool StreamState::EnsureOpen(Link* link, const std::shared_ptr<SequenceRecord>& record, absl::Time now) {
  if (follows()) return true;
  SequenceRecord::Standing& standing = record->standing;
  const bool here = standing.stream == link->number;
  if (here && standing.unanswered) return false;
  if (here && !standing.needs_history) return true;
  if (now < standing.not_before) return false;
  const bool fork = CanFork(*link, *record);
  if (link->transport->sampler() != nullptr && !KeyIdOf(*record).empty()) {
    standing.not_before = now + links_.Wait(++standing.attempts);
    FailSequence(record.get(), KeyNeeded(), standing.not_before);
    return false;
  }
  if (link->transport->sampler() != nullptr) {
    OpenLocally(link, record, fork);
    return false;
  }
  if (fork) {
    SendFork(link, record, now);
    return false;
  }
  const bool replay = standing.needs_history || (!standing.known && SendsHistoryAtOnce(record->in_force()));
  if (replay && !HasRoomFor(*record)) return false;
  SendOpen(link, record, replay, now);
  return false;
}

// True if the history may be sent now. Only some histories are sent at a time, so that rows do not wait behind all.
bool StreamState::HasRoomFor(SequenceRecord& record) const {
  if (unanswered_history_tokens_ == 0) return true;
  absl::MutexLock lock(&record.mutex);
  return unanswered_history_tokens_ + record.history.tokens().size() <= options_.limits.history_window_tokens;
}

// Begins an open on `link`, which the caller then sends.
StreamState::SentOpen* StreamState::BeginOpen(const std::shared_ptr<SequenceRecord>& record, const Link& link) {
  SequenceRecord::Standing& standing = record->standing;
  standing.stream = link.number;
  standing.epoch = next_epoch_++;
  standing.unanswered = true;
  SentOpen& sent = sent_opens_[standing.epoch];
  sent.record = record;
  sent.first_message = sent.last_message = link.messages + 1;
  absl::MutexLock lock(&record->mutex);
  sent.history_version = record->history.version();
  return &sent;
}

// Returns the seed to open the sequence with, if it has one.
std::optional<uint64_t> StreamState::SeedOf(const SequenceRecord& record) {
  return record.standing.known ? std::optional(record.seed) : record.options.seed;
}

// Opens the sequence in this process, with its history or as a fork.
void StreamState::OpenLocally(Link* link, const std::shared_ptr<SequenceRecord>& record, bool fork) {
  SentOpen* const sent = BeginOpen(record, *link);
  sent->fork = fork;
  sent->with_history = !fork;
  record->standing.forked |= fork;
  LocalOpen open;
  open.record = record;
  open.epoch = record->standing.epoch;
  if (fork) open.parent = record->origin->parent;
  {
    absl::MutexLock lock(&record->mutex);
    open.seed = SeedOf(*record);
    open.position = record->history.position();
    if (!fork) open.tokens = record->history.tokens();
    open.prompt_length = record->history.prompt_length();
    open.checkpoint = record->checkpoint;
  }
  link->transport->sampler()->Open(std::move(open));
}

// Describes an open that has begun, without its history.
v1::OpenSequence StreamState::DescribeOpen(SequenceRecord* record) {
  const SequenceOptions& options = record->options;
  v1::OpenSequence open;
  open.set_request_id(options.request_id);
  open.set_epoch(record->standing.epoch);
  open.set_law_version(law::kLawVersion);
  *open.mutable_parameters() = record->in_force().parameters;
  open.set_watermark_key_id(KeyIdOf(*record));
  if (options.choice_index != 0) open.set_choice_index(options.choice_index);
  open.set_vocabulary_size(options.vocabulary_size);
  if (options.live_vocabulary_size) open.set_live_vocabulary_size(*options.live_vocabulary_size);
  open.set_model(options.model);
  if (options.receipts != nullptr) open.mutable_receipts()->set_salt(options.receipts->salt());
  absl::MutexLock lock(&record->mutex);
  if (const std::optional<uint64_t> seed = SeedOf(*record)) open.set_seed(*seed);
  return open;
}

// True if the service has, on this stream, the tokens that the sequence starts with.
bool StreamState::CanFork(const Link& link, SequenceRecord& record) const {
  if (!record.origin || record.standing.known || record.standing.forked) return false;
  SequenceRecord& parent = *record.origin->parent;
  const SequenceRecord::Standing& standing = parent.standing;
  if (standing.stream != link.number || standing.unanswered || standing.needs_history || standing.closed) return false;
  absl::MutexLock lock(&parent.mutex);
  return parent.stateful && !parent.in_flight && parent.history.shared() >= record.origin->position;
}

void StreamState::SendFork(Link* link, const std::shared_ptr<SequenceRecord>& record, absl::Time now) {
  record->standing.forked = true;
  BeginOpen(record, *link)->fork = true;
  v1::StreamRequest request;
  v1::ForkSequence& fork = *request.mutable_fork();
  *fork.mutable_child() = DescribeOpen(record.get());
  fork.set_parent_request_id(record->origin->parent->options.request_id);
  fork.set_position(record->origin->position);
  if (IsTooLarge(link, *record, request.ByteSizeLong(), now)) return;
  links_.Send(link, EncodeMessage(request, {}, nullptr));
}

// True if the messages of an open that has begun do not fit the link, with `bytes` or more each. Another stream then
// takes the place of the link, or the open is refused.
bool StreamState::IsTooLarge(Link* link, const SequenceRecord& record, uint64_t bytes, absl::Time now) {
  if (bytes <= link->max_message_bytes) return false;
  if (bytes <= link->server_message_bytes && link->transport->Outgrow()) return true;
  OnOpenAnswered(record.standing.epoch, OpenTooLarge(bytes, link->max_message_bytes), now);
  return true;
}

void StreamState::SendOpen(Link* link, const std::shared_ptr<SequenceRecord>& record, bool with_history,
                           absl::Time now) {
  SentOpen& sent = *BeginOpen(record, *link);
  sent.with_history = with_history;
  v1::StreamRequest request;
  v1::OpenSequence& open = *request.mutable_open();
  open = DescribeOpen(record.get());
  const uint64_t bytes = request.ByteSizeLong();
  if (IsTooLarge(link, *record, with_history ? bytes + kHistoryBytes + kTokenBytes : bytes, now)) return;
  absl::MutexLock lock(&record->mutex);
  if (with_history) {
    const uint64_t most_bytes = std::min(link->max_message_bytes, service::kMaxFieldBytes);
    // The service refuses parameters beside which no token has room.
    const uint64_t room = most_bytes - std::min(most_bytes, bytes + kHistoryBytes);
    const uint64_t fit = std::max<uint64_t>(room / kTokenBytes, 1);
    const uint64_t most = std::min<uint64_t>(options_.limits.history_piece_tokens, fit);
    const std::vector<uint32_t>& tokens = record->history.tokens();
    sent.history_tokens = tokens.size();
    unanswered_history_tokens_ += sent.history_tokens;
    v1::History& history = *open.mutable_history();
    history.set_prompt_length(record->history.prompt_length());
    size_t offset = 0;
    while (tokens.size() - offset > most) {
      const auto from = tokens.begin() + static_cast<ptrdiff_t>(offset);
      history.mutable_tokens()->Assign(from, from + static_cast<ptrdiff_t>(most));
      history.set_offset(static_cast<uint32_t>(offset));
      history.set_continues(true);
      links_.Send(link, EncodeMessage(request, {}, nullptr));
      offset += most;
    }
    history.mutable_tokens()->Assign(tokens.begin() + static_cast<ptrdiff_t>(offset), tokens.end());
    history.set_offset(static_cast<uint32_t>(offset));
    history.set_continues(false);
  }
  links_.Send(link, EncodeMessage(request, {}, nullptr));
  sent.last_message = link->messages;
}

void StreamState::OnOpened(const v1::SequenceOpened& opened, absl::Time now) {
  if (!opened.has_state()) return OnOpenAnswered(opened.epoch(), FromWire(opened.error()), now);
  const v1::OpenedState& state = opened.state();
  const auto sent = sent_opens_.find(opened.epoch());
  if (sent == sent_opens_.end()) return;  // the open was given up
  sent->second.receipts += state.receipts();
  if (state.continues()) return;
  if (ReceiptLog* const log = sent->second.record->options.receipts.get()) {
    log->OnOpened(state.seed(), state.receipt_salt(), sent->second.receipts);
  }
  OnOpenAnswered(opened.epoch(),
                 LocalOpened{state.seed(), state.stateful(), state.history_hash(), state.last_step_id(),
                             /*by_service=*/true, state.policy()},
                 now);
}

void StreamState::OnOpenAnswered(uint64_t epoch, const LocalOpenResult& answer, absl::Time now) {
  auto node = sent_opens_.extract(epoch);
  if (node.empty()) return;  // the open was given up
  const SentOpen& sent = node.mapped();
  unanswered_history_tokens_ -= sent.history_tokens;
  sent.record->standing.unanswered = false;
  if (sent.record->standing.closed) {
    if (Link* link = links_.usable()) SendClose(link, *sent.record);
  } else if (const auto* state = std::get_if<LocalOpened>(&answer)) {
    OnOpenAccepted(sent, *state);
  } else {
    OnOpenRefused(sent, std::get<RowError>(answer), now);
  }
}

void StreamState::OnForked(const v1::SequenceForked& forked, absl::Time now) {
  for (auto it = sent_opens_.begin(); it != sent_opens_.end(); ++it) {
    const SentOpen& sent = it->second;
    if (!sent.fork || sent.record->options.request_id != forked.request_id()) continue;
    v1::SequenceOpened opened;
    opened.set_epoch(it->first);
    // A sequence that cannot be forked is opened with its history.
    if (forked.has_state()) {
      *opened.mutable_state() = forked.state();
    } else {
      *opened.mutable_error() = forked.error();
      if (RemedyFor(FromWire(forked.error()).reason) != Remedy::kGoElsewhere) {
        // Only a sequence with state is sent with its history.
        opened.mutable_error()->set_reason(LooksAtHistory(sent.record->in_force()) ? v1::HISTORY_REQUIRED
                                                                                   : v1::UNKNOWN_SEQUENCE);
      }
    }
    return OnOpened(opened, now);
  }
}

void StreamState::OnOpenAccepted(const SentOpen& sent, const LocalOpened& state) {
  SequenceRecord& record = *sent.record;
  bool outdated = false;
  std::optional<RowError> mistake;
  {
    absl::MutexLock lock(&record.mutex);
    if (state.by_service && (record.standing.known || record.options.policy)) {
      mistake =
          PolicyChange(record.policy, state.policy,
                       record.policy.has_history_digest() ? record.policy.history_digest() : record.Digest(state.seed));
    } else if (state.by_service) {
      record.TakePolicy(state.policy);
    }
    record.seed = state.seed;
    record.stateful = state.stateful;
    record.next_step_id = std::max(record.next_step_id, state.last_step_id + 1);
    if (mistake) {
      // The opening fails, so the history stays as it is.
    } else if (!state.stateful) {
      record.history.KeepNothing();
    } else if (!record.history.has_tokens()) {
      mistake = record.options.start_position ? PromptNeeded() : ServerMistake("an earlier server needed no history");
    } else {
      record.history.Identify(state.policy.has_history_digest() ? state.policy.history_digest()
                                                                : record.Digest(record.seed));
      if (sent.fork) {
        // The histories differ if the parent has changed.
        outdated = state.history_hash != record.history.hash();
        if (!outdated) record.history.Anchor();
      } else if (sent.with_history) {
        // The step that needed the history may have passed its deadline, and the caller may have rewritten it since.
        outdated = record.history.version() != sent.history_version;
        if (!outdated && state.history_hash == record.history.hash()) {
          record.history.Anchor();
        } else if (!outdated) {
          mistake = ServerMistake("the server took the history for another one: the hashes differ");
        }
      }
    }
  }
  record.standing.known = true;
  record.origin.reset();  // otherwise a line of forks would keep its first sequence alive
  record.standing.attempts = 0;
  record.standing.needs_history = outdated;
  if (mistake) {
    record.standing.stream = 0;
    FailSequence(&record, *mistake);
  } else if (!outdated) {
    FinishOpens(&record, absl::OkStatus());
  }
}

void StreamState::OnOpenRefused(const SentOpen& sent, const RowError& error, absl::Time now) {
  SequenceRecord& record = *sent.record;
  SequenceRecord::Standing& standing = record.standing;
  standing.stream = 0;
  // The operator has removed the policy that marked texts and so needed the history.
  const bool is_unneeded = error.reason == v1::CONTRADICTION && error.field == "open.history" && sent.with_history;
  if (is_unneeded && !LooksAtHistory(record.in_force())) {
    standing.needs_history = false;
    return;
  }
  switch (RemedyFor(error.reason)) {
    case Remedy::kReplay:
      if (record.options.start_position) return FailSequence(&record, PromptNeeded());
      if (!HasTokens(&record)) return FailSequence(&record, MarkedLater());
      if (sent.with_history) return FailSequence(&record, error);  // the history was sent already
      standing.needs_history = true;
      standing.not_before = now + error.retry_after;
      return;
    case Remedy::kGoElsewhere:
      links_.Retire(links_.current_number(), now);
      return;
    case Remedy::kReopen:
    case Remedy::kRetryLater:
      standing.not_before = now + std::max(error.retry_after, links_.Wait(++standing.attempts));
      return FailSequence(&record, error, standing.not_before);
    case Remedy::kSurface:
      return FailSequence(&record, error);
  }
}

}  // namespace sortition::client
