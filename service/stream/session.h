// The protocol of one stream as a state machine: messages in, messages out, without sockets or threads.
//
// Its shells are the gRPC stream (calls/stream_call.h), the ring (calls/ring_stream.h) and the in-process client
// (client/cpp). Sequences, steps and shards are other classes of this folder; a step that runs may outlive the session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "service/batch/batcher.h"
#include "service/client_accounts.h"
#include "service/engine.h"
#include "service/refusal.h"
#include "service/stream/shard_assembler.h"
#include "service/stream/step_runner.h"
#include "service/stream/stream_context.h"
#include "service/stream/stream_sequences.h"
#include "service/stream/uploaded_masks.h"
#include "service/wire/frame.h"
#include "service/wire/strictness.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

class Session {
 public:
  // `engine` is not owned and outlives the session. `sink` may still be called after the session's end, by steps that
  // run. `tenant` comes from the caller's identity; no session can touch the sequences of another tenant.
  Session(Engine* engine, std::string tenant, std::shared_ptr<SessionSink> sink);
  ~Session() { Close(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Takes one message, in stream order. Not thread-safe with itself; device threads may deliver meanwhile. Does not
  // block, but a long history takes long.
  void OnFrame(Frame frame);
  // Takes a message in pieces of about a millisecond's work, for shells whose thread serves other streams: while
  // back_off() is not zero, the caller must call Continue before any other of these. Same rules as OnFrame. `thread`:
  // the caller's.
  void BeginFrame(Frame frame, Submitter thread = Submitter::kBusy);
  void Continue();
  // Takes a message that could not be decoded. Same rules as OnFrame.
  void OnRejectedFrame(const Refusal& refusal);

  // Returns an empty message for DecodeFrame, with the memory of a step that is over if there is one. Thread-safe.
  std::unique_ptr<v1::Step> NewStep() { return stream_->NewStep(); }

  // False while the worker has more unanswered than its window allows: the shell then stops reading until answers have
  // left. Thread-safe.
  bool WantsFrames() const { return stream_->window->WantsFrames(); }

  // Returns the pause before the shell calls Continue, for the sake of other streams. Same rules as OnFrame.
  absl::Duration back_off() const { return stream_->pause; }

  // True if every step of this stream is answered and every answer has left. Thread-safe.
  bool Idle() const { return stream_->window->Idle(); }

  // Announces the end: sends a draining notice, the first time, and refuses every later step with DRAINING. At a
  // shutdown, shards that wait are refused, too. Thread-safe.
  void Drain(v1::DrainingNotice::Cause cause, absl::Duration grace);

  // Ends the stream: cancels steps that wait, drops results that still come, and leaves the sequences of steps that run
  // as they were before these steps. Idempotent. Thread-safe. Afterwards the sink may still be called, and drops the
  // messages.
  void Close();

 private:
  // Removes the unknown fields that the worker has asked to ignore, and reports those that occur for the first time.
  void DropIgnored(Frame* frame);
  std::optional<Refusal> OnHello(const v1::Hello& hello);
  std::optional<Refusal> OnAttachMemory(const v1::AttachMemory& attach);
  std::optional<Refusal> OnUploadMask(const v1::UploadMask& upload, std::vector<Payload> payloads, uint64_t bytes);
  std::optional<Refusal> OnBringAnswer(const v1::BringAnswer& bring, uint64_t bytes);
  // Takes an open, a fork or an answer that is brought.
  void TakeRead(Frame frame);
  void OnCancel(const v1::CancelStep& cancel);
  void Refuse(const v1::StreamRequest& message, const Refusal& refusal);
  // A step that was refused before it was charged to the window.
  void RefuseStep(uint64_t batch_id, const Refusal& refusal);

  Engine& engine_;
  const std::shared_ptr<StreamContext> stream_;
  const std::shared_ptr<ClientAccount> account_;

  // Used only by BeginFrame's thread.
  bool greeted_ = false;
  std::optional<IgnoredFields> ignored_fields_;  // if the worker requested it
  std::vector<std::string> ignored_in_hello_;
  uint64_t messages_ = 0;
  std::optional<Frame> read_;                 // a long message whose work has not begun
  std::shared_ptr<MemoryConnection> memory_;  // has the regions that steps may name; null if none
  StreamSequences sequences_;
  UploadedMasks masks_;
  ShardAssembler shards_;
  StepRunner steps_;
};

}  // namespace sortition::service
