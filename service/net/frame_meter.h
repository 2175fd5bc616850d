// Counts the frames that a client sends over one HTTP/2 connection, and says when they are more than an honest client
// sends.
//
// Reads the headers of frames, 9 bytes each, and the lengths of messages, and skips the rest. Two kinds of limits:
// - Frames that no honest client sends in numbers end the connection (FrameExcess).
// - Calls and frames that an honest client may send in numbers are paced: the connection is read again when its budget
//   has refilled. A connection has small budgets until the service has answered one of its calls (AddAnswer).
// Messages that are not complete are held by gRPC. Until the service has authorised a call of the connection
// (AddCaller), their bytes are bounded: beyond it the connection waits, and is ended if it has to wait long. After it
// they are counted for arrivals.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"

namespace sortition::server {

// Why a connection is ended. kNone: it is not.
enum class FrameExcess : uint8_t {
  kNone,
  kNotHttp2,        // it does not begin with HTTP/2's preface
  kHeaderBlock,     // a block of headers is too long or comes in too many frames
  kResets,          // streams reset before the server can have answered them
  kSettings,        // SETTINGS frames
  kPings,           // PING frames
  kEmptyData,       // DATA frames without data that do not end a stream
  kOtherFrames,     // PRIORITY, GOAWAY, PUSH_PROMISE and unknown frames
  kUnacknowledged,  // calls before the server's settings were acknowledged
  kHiddenFrames,    // TLS whose plaintext the guard cannot see
  kUnfinished,      // messages that are not complete, of callers that no call has authorised
  kUnread,          // answers that it leaves in the socket after their call was cancelled
};
inline constexpr size_t kFrameExcesses = 12;
std::string_view FrameExcessName(FrameExcess excess);

// A budget that refills with time. Not thread-safe.
class TokenBucket {
 public:
  struct Rate {
    double burst;
    double per_second;
  };
  TokenBucket(const Rate& rate, absl::Time now) : rate_(rate), tokens_(rate.burst), filled_(now) {}

  // Takes `count` tokens and returns true if there were any. Time pays a debt back.
  bool Take(double count, absl::Time now);
  // Adds tokens, up to the burst.
  void Add(double count);
  // Replaces the rate and fills the bucket.
  void Widen(const Rate& rate, absl::Time now) { *this = TokenBucket(rate, now); }
  double Left(absl::Time now);

 private:
  Rate rate_;
  double tokens_;
  absl::Time filled_;
};

// The published limits (docs/threat-model.md).
struct FrameLimits {
  uint64_t header_block_bytes = 65'536;
  uint32_t header_block_frames = 32;
  uint32_t unacknowledged_calls = 100;
  // Calls: one for each stream opened, and one for each KiB of its headers.
  TokenBucket::Rate new_calls = {32, 100};
  TokenBucket::Rate calls = {2'000, 20'000};
  // Frames: one each; PING, RST_STREAM, SETTINGS and HEADERS count as kCostlyFrame.
  TokenBucket::Rate new_frames = {2'000, 20'000};
  TokenBucket::Rate frames = {500'000, 500'000};
  // Each answered call adds one early reset.
  TokenBucket::Rate early_resets = {100, 10};
  double answered_resets = 20'000;  // burst of early resets once calls were answered
  // gRPC itself ends a connection at the third PING after which it has sent nothing else.
  TokenBucket::Rate new_pings = {20, 10};
  TokenBucket::Rate pings = {1'000, 5'000};
  TokenBucket::Rate rare_frames = {50, 10};
  // Bytes of the unfinished calls' messages on a connection without an authorised call, and how long it waits beyond.
  uint64_t unfinished_bytes = 262'144;
  absl::Duration unfinished_wait = absl::Seconds(5);
  // Streams whose messages are followed. Beyond it the oldest is followed no more: all its bytes count.
  size_t followed_streams = 4'096;
  // Bytes of one read beyond the payload that the last one began.
  size_t new_read_bytes = 65'536;
  size_t read_bytes = 262'144;
};

// Not thread-safe.
class FrameMeter {
 public:
  explicit FrameMeter(absl::Time now, const FrameLimits& limits = {});

  // Counts the next bytes from the client. Once it has returned an excess, it returns the same one.
  FrameExcess Read(const void* bytes, size_t size, absl::Time now);

  // Returns how many bytes may be read now, with no more than about `most_calls` calls; 0 = none until the budgets have
  // refilled.
  size_t MayRead(absl::Time now, double most_calls = std::numeric_limits<double>::infinity());

  // Notes that the service has answered a call or a message of the connection.
  void AddAnswer(absl::Time now);
  bool answered() const { return answered_; }

  // Notes that the service has authorised a call of the connection: its messages may have any size.
  void AddCaller();
  // Returns the bytes of messages that have begun and not ended.
  uint64_t begun_bytes() const { return begun_bytes_; }
  // Returns true if unfinished messages have kept the connection waiting for long.
  bool IsOverdue(absl::Time now) const { return now - overfull_since_ > limits_.unfinished_wait; }

  // Returns the number of streams opened since the last call.
  double TakeNewCalls();

 private:
  void BeginFrame(absl::Time now);
  void CountHeaders(uint64_t size, uint8_t flags, uint32_t stream, absl::Time now);
  void CountReset(uint32_t stream, absl::Time now);
  void CountData(uint64_t size, uint8_t flags, uint32_t stream, absl::Time now);
  // Counts the next bytes of the messages of the DATA frame's stream.
  void CountMessages(const uint8_t* bytes, uint64_t size);
  // Drops what was counted of the stream: it has ended.
  void ForgetData(uint32_t stream);
  void CountBlock(uint64_t size, uint8_t flags, absl::Time now);
  void AgeStreams(absl::Time now);
  // Takes one for a frame, and one for each KiB of its payload. Ends the connection with `excess` if `bucket` is empty.
  void TakeRare(TokenBucket* bucket, FrameExcess excess, uint64_t size, absl::Time now);

  const FrameLimits limits_;
  FrameExcess excess_ = FrameExcess::kNone;
  size_t preface_bytes_ = 0;  // bytes of the preface that have come
  uint8_t header_[9] = {};
  size_t header_bytes_ = 0;
  uint64_t payload_left_ = 0;

  uint64_t block_bytes_ = 0;
  uint32_t block_frames_ = 0;
  bool acknowledged_ = false;
  uint32_t unacknowledged_calls_ = 0;

  uint32_t last_stream_ = 0;  // the last that was opened
  uint32_t aged_stream_ = 0;  // this one and all before it are old enough to be reset
  uint32_t mark_stream_ = 0;  // the last that was opened at mark_
  absl::Time mark_;
  absl::Time opened_;  // when the last stream was opened

  // The messages of a stream. gRPC puts five bytes before each: a flag and its length.
  struct Messages {
    uint64_t bytes = 0;  // of all of them, while there is no caller
    uint64_t begun = 0;  // bytes of the last, which has not ended
    uint64_t left = 0;   // of it; before the fifth of its bytes a part of its length
  };
  absl::btree_map<uint32_t, Messages> streams_;  // that are open
  uint32_t data_stream_ = 0;                     // of the DATA frame whose payload comes; 0 = of another frame
  bool data_ends_ = false;                       // it ends its stream
  uint64_t begun_bytes_ = 0;
  bool has_caller_ = false;
  uint64_t unfinished_bytes_ = 0;                       // of all messages of open streams; 0 with a caller
  absl::Time overfull_since_ = absl::InfiniteFuture();  // since when the sum is beyond its limit

  bool answered_ = false;
  double new_calls_ = 0;
  TokenBucket calls_;
  TokenBucket frames_;
  TokenBucket early_resets_;
  TokenBucket settings_;
  TokenBucket pings_;
  TokenBucket empty_data_;
  TokenBucket other_frames_;
};

}  // namespace sortition::server
