// The streams of a client: starts them, and replaces those that end, drain or are only a fallback.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/target_choice.h"
#include "client/cpp/transport/transport.h"
#include "sortition/options.h"

namespace sortition::client {

// One stream that has been started and has not ended.
struct Link {
  uint64_t number = 0;
  size_t target = 0;
  std::shared_ptr<Transport> transport;
  uint64_t messages = 0;                       // sent so far, hello included
  uint64_t server_message_bytes = UINT64_MAX;  // the server's limit on a message
  uint64_t max_message_bytes = UINT64_MAX;     // the stream's limit, at most the server's
  bool ready_words = false;                    // the server reads ready words itself
  uint32_t max_compact_tokens = 0;             // the server's limits on compact rows; 0 = it takes none
  uint64_t max_compact_bytes = 0;
  uint64_t attach = 0;  // number of the message that names the memory shared with the server; 0 = none was sent
  absl::Time welcome_by;
  std::optional<absl::Time> welcomed;
  bool retiring = false;  // finishes steps in flight and takes no new ones
  bool answered = false;  // the server has answered a request
  bool reported = false;  // its end has been reported to TargetChoice
  // Time of the server's last message, or of the last counted timeout. Only requests sent after it can show that the
  // server is silent.
  absl::Time judged_from;
  uint32_t timeouts = 0;    // in a row, since the server's last message
  absl::Time silent_since;  // when the request of the first of them was sent
};

// At most two streams are live: the current one, and a successor while the current one is retiring or is the in-process
// fallback. The successor takes over once it has been welcomed and the current one has nothing in flight, or as soon as
// the current one ends. So no sequence has steps on two streams. Not thread-safe.
class Links {
 public:
  // `options` and `events` are not owned and outlive the links. `connector`, unless null, starts every stream in place
  // of the connectors of `options`.
  Links(const ClientOptions& options, std::string worker_session, std::shared_ptr<Connector> connector,
        StreamEvents* events, uint64_t jitter_seed);

  // Starts and replaces streams as far as possible now. `idle`: nothing sent on the current stream waits for an answer.
  // `bound`: some sequence can only continue in process, so the fallback stays for up to ClientOptions::fallback_stay.
  // True if another stream is the current one: messages sent on the former one will not be answered.
  bool Advance(absl::Time now, bool idle, bool bound);

  // Returns the stream to send on; null if there is none. Valid until the next call of a method that is not const.
  Link* usable();
  void Send(Link* link, OutgoingMessage message);

  // Events of streams. Those of a stream that is not live any more are ignored.
  void OnWelcome(uint64_t stream, const v1::Welcome& welcome, absl::Time now);
  void OnHeard(uint64_t stream, absl::Time now);  // any message
  void OnIgnored(const v1::IgnoredFields& ignored) {
    ignored_.insert(ignored.fields().begin(), ignored.fields().end());
  }
  void OnAnswer(uint64_t stream);
  // The server has rejected a message. True if it was the one that names the memory: a gRPC stream then continues
  // without memory, and a ring is ended.
  bool OnAttachRejected(uint64_t stream, uint64_t message, const absl::Status& why, absl::Time now);
  void OnEnded(uint64_t stream, const absl::Status& status, absl::Time now);
  bool IsLive(uint64_t stream) const;
  bool IsWelcomed(uint64_t stream) const;
  uint64_t current_number() const { return current_ ? current_->number : 0; }

  // Replaces a stream, which gets no new steps. The in-process fallback cannot be replaced and stays.
  void Retire(uint64_t stream, absl::Time now);
  // Counts a timeout: a step or an open, sent at `asked`, has passed its deadline while the current stream owes
  // answers. A slow server still answers late, so a stream is ended only after two timeouts in a row and when no
  // message has come for `connect_timeout` or longer. The in-process fallback is never ended: it ends with its process.
  void OnTimeout(absl::Time asked, absl::Time now);
  // Ends a stream that cannot be used any longer.
  void Break(uint64_t stream, const absl::Status& why, absl::Time now);
  // Ends every stream.
  void Stop();
  // Hands out the connectors, to be called once, after Stop. Their destructors block until every stream has ended, and
  // so until the owner has taken its last event.
  std::vector<std::shared_ptr<Connector>> TakeConnectors() {
    return {std::move(connector_), std::move(fallback_connector_)};
  }

  // Returns the time of the next work of Advance.
  absl::Time next_event() const;
  // True if there is no stream, and every target has failed (`hopeless`: twice) since a stream was last useful.
  bool exhausted() const { return !current_ && choice_.exhausted(); }
  bool hopeless() const { return !current_ && choice_.hopeless(); }
  // The reason why a stream ended last, as "host:port: ..."; empty if none did.
  const std::string& last_failure() const { return last_failure_; }
  const absl::Status& last_status() const { return last_status_; }

  // Fields that servers have ignored, each once.
  std::vector<std::string> ignored_fields() const { return {ignored_.begin(), ignored_.end()}; }

  // True if the current stream shares memory with its server.
  bool shares_memory() const { return current_ && current_->transport->memory() != nullptr; }
  bool in_process() const { return current_ && choice_.IsFallback(current_->target); }

  // The current stream; null if there is none. Valid until the next call of a method that is not const.
  const Link* current() const { return current_ ? &*current_ : nullptr; }

  // The transports of the live streams, to be flushed. Either may be null.
  std::shared_ptr<Transport> current_transport() const { return current_ ? current_->transport : nullptr; }
  std::shared_ptr<Transport> successor_transport() const { return successor_ ? successor_->transport : nullptr; }

  // Returns a random back-off after the `attempt`th refusal in a row, from 1.
  absl::Duration Wait(uint32_t attempt) { return choice_.Wait(attempt); }

 private:
  std::optional<Link> TryStart(absl::Time now, bool fallback_wanted);
  // Makes the successor the current stream if it can be.
  void TakeOver(absl::Time now, bool idle, bool bound);
  Link* Find(uint64_t stream);
  static void Drop(std::optional<Link>* link);
  bool NeedsSuccessor() const;
  // True if the successor, which has been welcomed, has to wait.
  bool Stays(absl::Time now, bool bound);
  void Report(Link* link, absl::Time now);
  std::string TargetName(size_t target) const;

  const ClientOptions& options_;
  const std::string worker_session_;
  std::shared_ptr<Connector> connector_;           // of the targets; null if there are none
  std::shared_ptr<Connector> fallback_connector_;  // in process; the same one where a connector was given
  StreamEvents* const events_;
  TargetChoice choice_;
  uint64_t last_number_ = 0;
  uint64_t advanced_ = 0;  // number of the current stream when Advance last returned; 0 = none
  std::optional<Link> current_;
  std::optional<Link> successor_;
  std::string last_failure_;
  absl::Status last_status_;
  absl::btree_set<std::string> ignored_;
  std::optional<absl::Time> stays_until_;  // set when a successor was first welcomed while sequences were bound
};

}  // namespace sortition::client
