// The protocol of one stream as a state machine: messages in, messages out, no sockets and no threads of its own.
//
// The gRPC server (server/stream_call.h) and the in-process client transport (client/cpp) are thin shells around it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "service/engine.h"
#include "service/refusal.h"
#include "service/request/frame.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// What leaves the stream's window when a message has been written.
struct SentRelease {
  uint32_t rows = 0;
  uint64_t bytes = 0;
};

// What a session needs of its shell.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  // Queues one message to the worker. Called from OnFrame's thread and from device threads, also concurrently:
  // thread-safe. Must not block and must not call back into the session. After the message has left (or can never
  // leave) the shell calls Session::OnSent with the same `release`.
  virtual void Send(v1::StreamResponse message, SentRelease release) = 0;
};

class Session {
 public:
  // `engine` and `sink` outlive the session, and the sink also every row in flight: see Close. `tenant` comes from
  // the caller's identity; no session can touch the sequences of another tenant.
  Session(Engine* engine, std::string tenant, std::shared_ptr<SessionSink> sink);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // One message, in stream order. Not thread-safe with itself; may run while device threads deliver. Does not block,
  // but takes what a long history takes.
  void OnFrame(Frame frame);
  // The same in pieces, each about a millisecond's work, for shells whose thread serves other streams: while rest() is
  // not zero, GoOn is to be called before anything else of these. Same rules.
  void BeginFrame(Frame frame);
  void GoOn();
  // A message that could not be decoded. Same rules.
  void OnRejectedFrame(const Refusal& refusal);

  // A message given to the sink has left or has been dropped. Thread-safe.
  void OnSent(const SentRelease& release);

  // False while the worker has more unanswered than its window allows: the shell then stops reading until OnSent has
  // made it true again. Thread-safe.
  bool WantsFrames() const;

  // How long the shell should wait, for the sake of other streams, before it calls GoOn: after a piece of a history.
  // Same rules as OnFrame.
  absl::Duration rest() const;

  // No step of this stream waits for an answer and every answer has left. Thread-safe.
  bool Idle() const;

  // Announces the end: sends a draining notice, the first time, and answers every later step with DRAINING. At a
  // shutdown slices that wait are given back, too. Thread-safe.
  void Drain(v1::DrainingNotice::Cause cause, absl::Duration grace);

  // The stream has ended: steps that wait are cancelled, answers that still come are dropped, and sequences in flight
  // keep the state they had. Idempotent. Thread-safe. After it the sink may still be called; it drops what it gets.
  void Close();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with rows in flight
};

}  // namespace sortition::service
