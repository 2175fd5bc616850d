// A load is streams of steps against servers, and the counts of their answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/bench/histogram.h"
#include "client/bench/logits.h"
#include "service/hiccups.h"
#include "sortition/client.h"

namespace sortition::bench {

struct LoadOptions {
  // Each stream is a client with these. Stream i begins with target i, modulo their number.
  client::ClientOptions connection;
  // Holds for all texts. Request ids are the load's. The seed, if there is one, is the first text's, and
  // further texts have the next numbers.
  client::SequenceOptions text;
  v1::DType dtype = v1::DTYPE_BF16;
  uint32_t streams = 1;
  uint32_t step_rows = 1;                           // texts of a stream, with one row each in every step
  uint32_t text_tokens = 1000;                      // a text's; then another one begins in its place
  std::optional<double> rate;                       // steps a second of all streams together; absent: a closed loop
  absl::Duration warm_up = absl::ZeroDuration();    // latency is measured of steps after it
  absl::Duration duration = absl::Seconds(10);      // after the warm-up
  const service::HiccupControl* control = nullptr;  // not owned, outlives the load; null: no step is undisturbed
};

// The counts of a load since its start. Rows in flight are sent, and not yet drawn, refused or lost.
struct Tally {
  uint64_t steps = 0;   // answered
  uint64_t rows = 0;    // sent
  uint64_t tokens = 0;  // rows that got their token
  // Rows without a token, by reason. A text that could not be opened counts as one row, and so does each of its rows.
  std::map<v1::ErrorReason, uint64_t> refused;
  uint64_t lost = 0;    // rows without an answer, or with an answer whose token did not advance the text
  uint64_t unsent = 0;  // steps due before the end that found their stream busy
  std::string first_refusal;
  // Holds steps after the warm-up. In a closed loop a time begins with the call of the step. In an open loop it begins
  // when the step is due, even if the stream is busy then. An unsent step has waited until the end.
  Histogram latency;
  // Holds those that overlap no hiccup, and did not wait for their stream behind one that does. Steps of the last few
  // milliseconds are missing until the load is over.
  Histogram undisturbed;

  uint64_t refused_rows() const;
  uint64_t in_flight() const { return rows - tokens - refused_rows() - lost; }
  void Merge(const Tally& other);
};

// A thread a stream. In a closed loop a stream sends its next step after the last one's answer, or at a refusal's
// advised time. In an open loop each stream's steps are due in equal intervals, and the streams take turns. A stream
// has one step in flight: a late step is sent as soon as the stream is free. Thread-safe.
class Load {
 public:
  using Clock = std::chrono::steady_clock;

  // Connects every stream, opens the first texts and starts. The error is the connection's or the text's.
  static absl::StatusOr<std::unique_ptr<Load>> Start(LoadOptions options);
  // Stops, and blocks until the steps in flight are over.
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  Clock::time_point measured_from() const { return measured_from_; }  // the end of the warm-up
  Tally Read() const;
  // Returns how the first stream's rows travel now.
  client::TransportInUse transport() const;
  // Sends no further steps.
  void Stop();
  // Blocks until every stream has sent its last step and got its last answer, at most for `timeout`. Returns false
  // after that.
  bool Wait(absl::Duration timeout);

 private:
  class Stream;
  explicit Load(LoadOptions options);

  const LoadOptions options_;
  const Logits pool_;
  Clock::time_point measured_from_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace sortition::bench
