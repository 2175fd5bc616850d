// A stream under load, and its steps' outcomes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "sortition/v1/sampling.grpc.pb.h"
#include "tests/chaos/load_text.h"

namespace sortition::testing {

// Since the last TakeFound. Latencies are from the beginning of a step's writing to its last answer, in milliseconds.
struct Found {
  uint64_t offered = 0;    // rows
  uint64_t tokens = 0;     // rows answered
  uint64_t refused = 0;    // rows of steps that were refused as a whole, overloaded
  uint64_t failed = 0;     // rows refused by themselves, or for another reason
  uint64_t different = 0;  // tokens that are not the reference's
  std::vector<double> answered_ms;
  std::vector<double> refused_ms;
  std::vector<double> overslept_ms;  // how much later than asked the stream's thread woke
  std::string first_error;

  void Add(const Found& other);
};

// Opens a separate connection, and a stream with all sequences of the text. Run and Drain belong to one thread; other
// threads may take the findings meanwhile. Ends the stream when destroyed.
class LoadStream {
 public:
  using Clock = std::chrono::steady_clock;

  // `text` is not owned. Steps have `rows` rows.
  LoadStream(const std::string& target, const LoadText* text, uint32_t rows);
  ~LoadStream();

  // Keeps `rows` rows unanswered until `until`.
  void RunClosed(uint32_t rows, Clock::time_point until);
  // Sends a step at a fixed interval, varied by up to a half by `seed`, whether or not earlier steps were answered.
  void RunOpen(Clock::duration every, uint64_t seed, Clock::time_point until);
  // Blocks until every step is answered.
  void Drain();

  Found TakeFound();

 private:
  struct Sent {
    Clock::time_point at;
    uint32_t unanswered = 0;  // rows
  };

  void Send();
  void Read();
  void OnResults(const v1::StepResults& results) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LoadText& text_;
  const uint32_t rows_;
  std::unique_ptr<v1::SamplingService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> stream_;
  uint64_t next_ = 1;
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Sent> sent_ ABSL_GUARDED_BY(mutex_);  // by number
  Found found_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_;
};

}  // namespace sortition::testing
