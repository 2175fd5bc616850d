// A worker and its stream to an engine, without a socket between them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "service/stream/session.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/support/messages.h"
#include "tests/support/recording_sink.h"

namespace sortition::testing {

// Encodes its messages and delivers them in random pieces. A wait that ends without its answer fails the test and
// returns an empty message. Not thread-safe.
class StreamWorker {
 public:
  struct Options {
    std::string tenant = "default";
    std::string worker_session = "worker";
    bool greets = true;  // sends the hello and takes the welcome
    uint64_t seed = 1;   // for the sizes of the pieces
  };

  explicit StreamWorker(service::Engine* engine) : StreamWorker(engine, Options()) {}
  StreamWorker(service::Engine* engine, const Options& options);

  void Send(const v1::StreamRequest& message) { SendBytes(message.SerializeAsString()); }
  // The same, whose pieces after the first one the caller has the session take.
  void Begin(const v1::StreamRequest& message);
  // Bytes that may be no message.
  void SendBytes(std::string bytes);

  // Sends an open and returns its answer.
  v1::SequenceOpened Open(const v1::OpenSequence& open);
  // The same, where the open must succeed.
  v1::OpenedState MustOpen(const v1::OpenSequence& open);
  // Sends a step and returns its answers in the order of its rows. Empty if the step was refused as a whole.
  std::vector<v1::RowResult> Run(const v1::StreamRequest& step);
  // The same for a step of one row.
  v1::RowResult RunOne(const v1::StreamRequest& step);
  // Send a fork or a close and return its answer.
  v1::SequenceForked Fork(const v1::StreamRequest& fork);
  v1::SequenceClosed Close(const v1::StreamRequest& close);

  // Answers to messages that were sent before.
  std::vector<v1::RowResult> Results(uint64_t batch_id, size_t rows);
  v1::Error StepError(uint64_t batch_id);
  v1::Rejected Rejected();
  std::optional<v1::StreamResponse> Await(const RecordingSink::Wanted& wanted);

  // Tells the session that everything it has said so far has left.
  void LetLeave();
  // LetLeave; then whether the session's window is empty.
  bool IsIdle();

  service::Session& session() { return *session_; }
  RecordingSink& sink() { return *sink_; }
  // Ends the stream.
  void Disconnect() { session_.reset(); }

 private:
  std::mt19937_64 random_;
  const std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  std::unique_ptr<service::Session> session_;
};

}  // namespace sortition::testing
