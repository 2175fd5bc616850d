// Starts, replaces and ends streams.
#include "client/cpp/links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/message.h"
#include "client/cpp/transport/grpc_transport.h"
#include "client/cpp/transport/ring_transport.h"
#include "client/cpp/transport/shared_memory.h"

namespace sortition::client {
namespace {

// Number of timeouts in a row that end a stream. An answer that is only late arrives before the second one.
constexpr uint32_t kTimeoutsToEnd = 2;

std::shared_ptr<Connector> MakeConnector(const ClientOptions& options) {
  if (options.targets.empty()) return nullptr;
  if (options.transport.kind == TransportKind::kRing) return std::make_shared<RingConnector>(options);
  return std::make_shared<GrpcConnector>(options);
}

}  // namespace

Links::Links(const ClientOptions& options, std::string worker_session, std::shared_ptr<Connector> connector,
             StreamEvents* events, uint64_t jitter_seed)
    : options_(options),
      worker_session_(std::move(worker_session)),
      connector_(connector != nullptr ? connector : MakeConnector(options)),
      fallback_connector_(connector != nullptr ? connector : (options.in_process ? options.in_process() : nullptr)),
      events_(events),
      choice_(options.targets.size(), options.in_process != nullptr, options.retry.backoff, jitter_seed) {}

bool Links::NeedsSuccessor() const {
  return current_->retiring || (choice_.IsFallback(current_->target) && !options_.targets.empty());
}

bool Links::Stays(absl::Time now, bool bound) {
  if (!bound || current_->retiring || !choice_.IsFallback(current_->target)) return false;
  if (!stays_until_) stays_until_ = now + options_.retry.fallback_stay;
  return now < *stays_until_;
}

bool Links::Advance(absl::Time now, bool idle, bool bound) {
  for (std::optional<Link>* link : {&current_, &successor_}) {
    if (*link && !(*link)->welcomed && (*link)->welcome_by <= now) {
      Break((*link)->number, absl::DeadlineExceededError("no welcome within the connect timeout"), now);
    }
  }
  TakeOver(now, idle, bound);
  if (!current_) {
    current_ = TryStart(now, /*fallback_wanted=*/true);
  } else if (!successor_ && NeedsSuccessor()) {
    successor_ = TryStart(now, /*fallback_wanted=*/!choice_.IsFallback(current_->target));
    if (successor_ && successor_->welcomed) TakeOver(now, idle, bound);
  }
  const uint64_t before = std::exchange(advanced_, current_ ? current_->number : 0);
  return before != advanced_;
}

void Links::TakeOver(absl::Time now, bool idle, bool bound) {
  // A successor was sent only the hello, so one that retires too early is dropped.
  if (successor_ && successor_->retiring) Drop(&successor_);
  if (current_ && successor_ && successor_->welcomed && !Stays(now, bound)) {
    current_->retiring = true;
    if (idle) Drop(&current_);
  } else if (current_ && choice_.IsFallback(current_->target)) {
    current_->retiring = false;  // the successor has ended before it could take over
  }
  if (!current_) {
    current_ = std::exchange(successor_, std::nullopt);
    stays_until_.reset();
  }
}

void Links::Drop(std::optional<Link>* link) {
  (*link)->transport->Cancel();
  link->reset();
}

std::optional<Link> Links::TryStart(absl::Time now, bool fallback_wanted) {
  const std::optional<size_t> target = choice_.Next(now, fallback_wanted);
  if (!target) return std::nullopt;
  Link link;
  link.number = ++last_number_;
  link.target = *target;
  link.welcome_by = now + options_.retry.connect_timeout;
  Connector& connector = choice_.IsFallback(*target) ? *fallback_connector_ : *connector_;
  link.transport = connector.Start(*target, link.number, events_);
  if (link.transport->sampler() != nullptr) {
    link.welcomed = now;
    return link;
  }
  v1::StreamRequest request;
  request.mutable_hello()->set_worker_session(worker_session_);
  request.mutable_hello()->set_client(options_.name);
  if (options_.ignore_unknown_fields) {
    // Uses reflection: in Protobuf 36 the message has another accessor with this name.
    v1::Hello* const hello = request.mutable_hello();
    hello->GetReflection()->SetEnumValue(hello, v1::Hello::descriptor()->FindFieldByName("unknown_fields"),
                                         v1::UNKNOWN_FIELDS_IGNORE);
  }
  Send(&link, EncodeMessage(request, {}, nullptr));
  return link;
}

Link* Links::usable() { return current_ && current_->welcomed && !current_->retiring ? &*current_ : nullptr; }

void Links::Send(Link* link, OutgoingMessage message) {
  ++link->messages;
  link->transport->Send(std::move(message));
}

Link* Links::Find(uint64_t stream) {
  if (current_ && current_->number == stream) return &*current_;
  if (successor_ && successor_->number == stream) return &*successor_;
  return nullptr;
}

bool Links::IsLive(uint64_t stream) const {
  return (current_ && current_->number == stream) || (successor_ && successor_->number == stream);
}

bool Links::IsWelcomed(uint64_t stream) const {
  return (current_ && current_->number == stream && current_->welcomed) ||
         (successor_ && successor_->number == stream && successor_->welcomed);
}

void Links::OnWelcome(uint64_t stream, const v1::Welcome& welcome, absl::Time now) {
  Link* link = Find(stream);
  if (link == nullptr) return;
  link->welcomed = now;
  ignored_.insert(welcome.ignored_fields().begin(), welcome.ignored_fields().end());
  if (welcome.max_message_bytes() != 0) link->server_message_bytes = welcome.max_message_bytes();
  link->max_message_bytes = std::min(link->server_message_bytes, link->transport->max_message_bytes());
  link->ready_words = welcome.ready_words();
  link->max_compact_tokens = welcome.max_compact_tokens();
  link->max_compact_bytes = welcome.max_compact_bytes();
  if (const std::shared_ptr<SharedMemory> memory = link->transport->memory()) {
    v1::StreamRequest request;
    request.mutable_attach_memory()->set_token(memory->token());
    Send(link, EncodeMessage(request, {}, nullptr));
    link->attach = link->messages;
  }
}

void Links::OnHeard(uint64_t stream, absl::Time now) {
  Link* link = Find(stream);
  if (link == nullptr) return;
  link->judged_from = now;
  link->timeouts = 0;
}

void Links::OnTimeout(absl::Time asked, absl::Time now) {
  if (!current_ || !current_->welcomed || choice_.IsFallback(current_->target)) return;
  Link& link = *current_;
  if (asked < link.judged_from) return;
  link.judged_from = now;
  if (link.timeouts++ == 0) link.silent_since = asked;
  const absl::Duration silence = now - link.silent_since;
  if (link.timeouts < kTimeoutsToEnd || silence < options_.retry.connect_timeout) return;
  Break(link.number, absl::DeadlineExceededError(absl::StrCat("nothing came for ", absl::FormatDuration(silence))),
        now);
}

bool Links::OnAttachRejected(uint64_t stream, uint64_t message, const absl::Status& why, absl::Time now) {
  Link* link = Find(stream);
  if (link == nullptr || message == 0 || link->attach != message) return false;
  if (link->transport->in_use().kind != TransportKind::kRing) {
    link->transport->DropMemory(std::string(why.message()));
  } else {
    Break(stream, why, now);
  }
  return true;
}

void Links::OnAnswer(uint64_t stream) {
  Link* link = Find(stream);
  if (link == nullptr || link->answered) return;
  link->answered = true;
  if (!choice_.IsFallback(link->target)) choice_.Useful();
}

void Links::Report(Link* link, absl::Time now) {
  if (choice_.IsFallback(link->target) || std::exchange(link->reported, true)) return;
  // A stream that has lasted was useful, even without requests. One that fell silent is a failure.
  const bool lasted = link->welcomed && now - *link->welcomed >= options_.retry.connect_timeout;
  const bool useful = (link->answered || lasted) && link->timeouts < kTimeoutsToEnd;
  choice_.Ended(useful, now);
}

void Links::OnEnded(uint64_t stream, const absl::Status& status, absl::Time now) {
  Link* link = Find(stream);
  if (link == nullptr) return;
  last_failure_ = absl::StrCat(TargetName(link->target), ": ", status.ToString());
  last_status_ = status;
  Report(link, now);
  (current_ && current_->number == stream ? current_ : successor_).reset();
}

void Links::Retire(uint64_t stream, absl::Time now) {
  Link* link = Find(stream);
  if (link == nullptr || link->retiring || choice_.IsFallback(link->target)) return;
  link->retiring = true;
  Report(link, now);
}

void Links::Break(uint64_t stream, const absl::Status& why, absl::Time now) {
  Link* link = Find(stream);
  if (link == nullptr) return;
  link->transport->Cancel();
  OnEnded(stream, why, now);
}

void Links::Stop() {
  for (std::optional<Link>* link : {&current_, &successor_}) {
    if (*link) Drop(link);
  }
}

absl::Time Links::next_event() const {
  absl::Time next = absl::InfiniteFuture();
  for (const std::optional<Link>* link : {&current_, &successor_}) {
    if (*link && !(*link)->welcomed) next = std::min(next, (*link)->welcome_by);
  }
  if (stays_until_ && current_ && !current_->retiring && successor_ && successor_->welcomed) {
    next = std::min(next, *stays_until_);
  }
  if (!current_ || (!successor_ && NeedsSuccessor())) next = std::min(next, choice_.not_before());
  return next;
}

std::string Links::TargetName(size_t target) const {
  return choice_.IsFallback(target) ? "in process" : options_.targets[target];
}

}  // namespace sortition::client
