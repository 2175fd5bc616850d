// Which stream is in use: starts streams, replaces the ones that end, drain or were only a fallback.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/options.h"
#include "client/cpp/target_choice.h"
#include "client/cpp/transport.h"

namespace sortition::client {

// One stream that has been started and has not ended.
struct Link {
  uint64_t number = 0;
  size_t target = 0;
  std::shared_ptr<Transport> transport;
  uint64_t messages = 0;                       // sent so far, hello included
  uint64_t server_message_bytes = UINT64_MAX;  // what its server takes
  uint64_t max_message_bytes = UINT64_MAX;     // what it can have, at most that
  bool ready_words = false;                    // the server looks at them itself
  uint64_t attach = 0;  // number of the message that names the memory shared with the server; 0 = there is none
  absl::Time welcome_by;
  std::optional<absl::Time> welcomed;
  bool retiring = false;  // carries what is in flight to its end, and nothing new
  bool answered = false;  // has brought an answer
  bool reported = false;  // its end is no news to the choice of targets any more
  // What was asked before says nothing of whether the server still answers: its last message, or the end of the last
  // wait in vain.
  absl::Time judged_from;
  uint32_t waits_in_vain = 0;  // in a row, since the server was last heard
  absl::Time silent_since;     // when the first of them began
};

// At most two streams live at a time: the current one, and a successor while the current one is retiring or is the
// in-process fallback. The successor takes over once it has been welcomed and the current one has nothing in flight, or
// as soon as the current one ends; so a sequence never has steps on two streams. Not thread-safe.
class Links {
 public:
  // `options` and `events` are not owned and outlive the links. `connector` starts every stream, in place of the
  // connectors that `options` ask for, if it is not null.
  Links(const ClientOptions& options, std::string worker_session, std::shared_ptr<Connector> connector,
        StreamEvents* events, uint64_t jitter_seed);

  // Starts and replaces streams as far as it can be done now. `idle`: nothing sent on the current stream waits for an
  // answer. `bound`: some sequence can only go on where it is; the fallback then stays, for as long as options say.
  // True if the current stream is another one than before, or none: what was sent on the former one will not be
  // answered.
  bool Advance(absl::Time now, bool idle, bool bound);

  // The stream to send on now; null if there is none. Valid until the next call of a method that is not const.
  Link* usable();
  void Send(Link* link, OutgoingMessage message);

  // Events of streams; those of a stream that is not live any more change nothing.
  void OnWelcome(uint64_t stream, const v1::Welcome& welcome, absl::Time now);
  void OnHeard(uint64_t stream, absl::Time now);  // any message
  void OnAnswer(uint64_t stream);
  // The server has rejected a message. True if it was the one that names the memory: a gRPC stream then continues
  // without memory, and a ring is ended.
  bool OnAttachRejected(uint64_t stream, uint64_t message, const absl::Status& why, absl::Time now);
  void OnEnded(uint64_t stream, const absl::Status& status, absl::Time now);
  bool IsLive(uint64_t stream) const;
  bool IsWelcomed(uint64_t stream) const;
  uint64_t current_number() const { return current_ ? current_->number : 0; }

  // The stream takes nothing new and is replaced. The in-process fallback has nowhere to go and stays.
  void Retire(uint64_t stream, absl::Time now);
  // A step or an open, asked at `asked`, has passed its deadline, and the current stream owes answers. A service that
  // lives answers late, too, so a stream is ended on which a second one in a row has waited in vain, and nothing at all
  // has come for `connect_timeout` or longer. Not the in-process fallback, which ends with its process.
  void OnWaitInVain(absl::Time asked, absl::Time now);
  // Ends a stream that cannot be used any longer.
  void Break(uint64_t stream, const absl::Status& why, absl::Time now);
  // Ends every stream.
  void Stop();
  // Hands out the connectors, to be called once, after Stop. Their destructors block until every stream has ended, and
  // so until the owner has taken its last event.
  std::vector<std::shared_ptr<Connector>> TakeConnectors() {
    return {std::move(connector_), std::move(fallback_connector_)};
  }

  // When Advance has something to do that it cannot do now.
  absl::Time next_event() const;
  // Every target has failed since a stream was last useful, and there is no stream now.
  bool exhausted() const { return !current_ && choice_.exhausted(); }
  bool hopeless() const { return !current_ && choice_.hopeless(); }
  // Why streams ended lately: "host:port: ..."; empty if none did.
  const std::string& last_failure() const { return last_failure_; }
  const absl::Status& last_status() const { return last_status_; }

  // Whether the current stream shares memory with its server.
  bool shares_memory() const { return current_ && current_->transport->memory() != nullptr; }
  bool in_process() const { return current_ && choice_.IsFallback(current_->target); }

  // Of the live streams, to be flushed. Either may be null.
  std::shared_ptr<Transport> current_transport() const { return current_ ? current_->transport : nullptr; }
  std::shared_ptr<Transport> successor_transport() const { return successor_ ? successor_->transport : nullptr; }

  // A random wait after the `attempt`th refusal in a row, from 1.
  absl::Duration Wait(uint32_t attempt) { return choice_.Wait(attempt); }

 private:
  std::optional<Link> TryStart(absl::Time now, bool fallback_wanted);
  Link* Find(uint64_t stream);
  static void Drop(std::optional<Link>* link);
  bool NeedsSuccessor() const;
  // Whether the successor, which has been welcomed, has to wait.
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
  std::optional<absl::Time> stays_until_;  // since a successor was welcomed for the first time
};

}  // namespace sortition::client
