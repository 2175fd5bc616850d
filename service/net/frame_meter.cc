// Frames, blocks of headers and budgets.
#include "service/net/frame_meter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/check.h"

namespace sortition::server {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kWindowUpdate = 8, kContinuation = 9;
constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;
// Cost of a frame that makes the server write, or begin or end a call, in units of other frames.
constexpr double kCostlyFrame = 8;
// Fewest bytes for each frame that is counted (RST_STREAM), and of a stream that is opened: six indexed headers.
constexpr double kLeastFrame = 1.5;
constexpr double kLeastCall = 15;
constexpr size_t kLeastRead = 512;
// A stream that is reset sooner was reset before the server can have answered it.
constexpr absl::Duration kEarly = absl::Milliseconds(1);

}  // namespace

std::string_view FrameExcessName(FrameExcess excess) {
  switch (excess) {
    case FrameExcess::kNone:
      return "none";
    case FrameExcess::kNotHttp2:
      return "not_http2";
    case FrameExcess::kHeaderBlock:
      return "header_block";
    case FrameExcess::kResets:
      return "resets";
    case FrameExcess::kSettings:
      return "settings";
    case FrameExcess::kPings:
      return "pings";
    case FrameExcess::kEmptyData:
      return "empty_data";
    case FrameExcess::kOtherFrames:
      return "other_frames";
    case FrameExcess::kUnacknowledged:
      return "unacknowledged";
    case FrameExcess::kHiddenFrames:
      return "hidden_frames";
    case FrameExcess::kUnfinished:
      return "unfinished";
    case FrameExcess::kUnread:
      return "unread";
  }
  SORTITION_CHECK(false);
}

bool TokenBucket::Take(double count, absl::Time now) {
  const bool had = Left(now) > 0;
  tokens_ -= count;
  return had;
}

void TokenBucket::Add(double count) { tokens_ = std::min(rate_.burst, tokens_ + count); }

double TokenBucket::Left(absl::Time now) {
  if (now > filled_) {
    tokens_ = std::min(rate_.burst, tokens_ + rate_.per_second * absl::ToDoubleSeconds(now - filled_));
    filled_ = now;
  }
  return tokens_;
}

FrameMeter::FrameMeter(absl::Time now, const FrameLimits& limits)
    : limits_(limits),
      mark_(now),
      opened_(now),
      calls_(limits.new_calls, now),
      frames_(limits.new_frames, now),
      early_resets_(limits.early_resets, now),
      settings_(limits.rare_frames, now),
      pings_(limits.new_pings, now),
      empty_data_(limits.rare_frames, now),
      other_frames_(limits.rare_frames, now) {}

FrameExcess FrameMeter::Read(const void* bytes, size_t size, absl::Time now) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  const uint8_t* const end = at + size;
  AgeStreams(now);
  while (at != end && excess_ == FrameExcess::kNone) {
    const auto left = static_cast<size_t>(end - at);
    if (preface_bytes_ < kPreface.size()) {
      const size_t count = std::min(left, kPreface.size() - preface_bytes_);
      if (std::memcmp(at, kPreface.data() + preface_bytes_, count) != 0) excess_ = FrameExcess::kNotHttp2;
      preface_bytes_ += count;
      at += count;
    } else if (payload_left_ != 0) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(left, payload_left_));
      if (data_stream_ != 0) CountMessages(at, count);
      payload_left_ -= count;
      at += count;
    } else {
      const size_t count = std::min(left, sizeof(header_) - header_bytes_);
      std::memcpy(header_ + header_bytes_, at, count);
      header_bytes_ += count;
      at += count;
      if (header_bytes_ < sizeof(header_)) break;
      header_bytes_ = 0;
      BeginFrame(now);
    }
  }
  return excess_;
}

void FrameMeter::BeginFrame(absl::Time now) {
  const uint64_t size = uint64_t{header_[0]} << 16 | uint64_t{header_[1]} << 8 | header_[2];
  const uint8_t type = header_[3];
  const uint8_t flags = header_[4];
  const uint32_t stream =
      uint32_t{header_[5] & 0x7fu} << 24 | uint32_t{header_[6]} << 16 | uint32_t{header_[7]} << 8 | header_[8];
  payload_left_ = size;
  data_stream_ = 0;
  double cost = 1;
  switch (type) {
    case kData:
      if (size == 0 && (flags & kEndStream) == 0) TakeRare(&empty_data_, FrameExcess::kEmptyData, size, now);
      CountData(size, flags, stream, now);
      break;
    case kHeaders:
      cost = kCostlyFrame;
      CountHeaders(size, flags, stream, now);
      break;
    case kContinuation:
      CountBlock(size, flags, now);
      break;
    case kReset:
      cost = kCostlyFrame;
      CountReset(stream, now);
      ForgetData(stream);
      break;
    case kSettings:
      cost = kCostlyFrame;
      acknowledged_ |= (flags & kAck) != 0;
      TakeRare(&settings_, FrameExcess::kSettings, size, now);
      break;
    case kPing:
      cost = kCostlyFrame;
      TakeRare(&pings_, FrameExcess::kPings, size, now);
      break;
    case kWindowUpdate:
      break;
    default:
      TakeRare(&other_frames_, FrameExcess::kOtherFrames, size, now);
  }
  frames_.Take(cost, now);
}

void FrameMeter::TakeRare(TokenBucket* bucket, FrameExcess excess, uint64_t size, absl::Time now) {
  if (!bucket->Take(1 + static_cast<double>(size / 1024), now)) excess_ = excess;
}

void FrameMeter::CountHeaders(uint64_t size, uint8_t flags, uint32_t stream, absl::Time now) {
  if (!acknowledged_ && ++unacknowledged_calls_ > limits_.unacknowledged_calls) excess_ = FrameExcess::kUnacknowledged;
  if (stream > last_stream_) {
    last_stream_ = stream;
    streams_.try_emplace(stream);
    if (streams_.size() > limits_.followed_streams) streams_.erase(streams_.begin());
  }
  if ((flags & kEndStream) != 0) ForgetData(stream);
  opened_ = now;
  calls_.Take(1, now);
  new_calls_ += 1;
  block_bytes_ = 0;
  block_frames_ = 0;
  CountBlock(size, flags, now);
}

void FrameMeter::CountBlock(uint64_t size, uint8_t flags, absl::Time now) {
  const double cost = static_cast<double>(size) / 1024;
  calls_.Take(cost, now);
  block_bytes_ += size;
  ++block_frames_;
  if (block_bytes_ > limits_.header_block_bytes || block_frames_ > limits_.header_block_frames) {
    excess_ = FrameExcess::kHeaderBlock;
  }
  if ((flags & kEndHeaders) != 0) block_frames_ = 0;
}

void FrameMeter::CountReset(uint32_t stream, absl::Time now) {
  if (stream <= aged_stream_) return;
  TakeRare(&early_resets_, FrameExcess::kResets, 0, now);
}

void FrameMeter::CountData(uint64_t size, uint8_t flags, uint32_t stream, absl::Time now) {
  if (!has_caller_) {
    const auto found = streams_.find(stream);
    if (found != streams_.end()) found->second.bytes += size;
    unfinished_bytes_ += size;
    if (unfinished_bytes_ > limits_.unfinished_bytes) overfull_since_ = std::min(overfull_since_, now);
  }
  // A stranger's message beyond the limit stays counted, complete or not.
  data_ends_ = (flags & kEndStream) != 0 && unfinished_bytes_ <= limits_.unfinished_bytes;
  if (size != 0) {
    data_stream_ = stream;
  } else if (data_ends_) {
    ForgetData(stream);
  }
}

void FrameMeter::CountMessages(const uint8_t* bytes, uint64_t size) {
  constexpr uint64_t kPrefix = 5;
  const auto found = streams_.find(data_stream_);
  if (found == streams_.end()) {
    begun_bytes_ += size;
    return;
  }
  Messages& messages = found->second;
  const bool is_last = size == payload_left_;
  while (size != 0) {
    uint64_t taken = 1;
    if (messages.begun >= kPrefix) {
      taken = std::min(size, messages.left);
      messages.left -= taken;
    } else if (messages.begun != 0) {
      messages.left = messages.left << 8 | *bytes;
    }
    messages.begun += taken;
    begun_bytes_ += taken;
    if (messages.begun >= kPrefix && messages.left == 0) begun_bytes_ -= std::exchange(messages.begun, 0);
    bytes += taken;
    size -= taken;
  }
  if (is_last && data_ends_) ForgetData(data_stream_);
}

void FrameMeter::ForgetData(uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  begun_bytes_ -= found->second.begun;
  unfinished_bytes_ -= found->second.bytes;
  streams_.erase(found);
  if (unfinished_bytes_ <= limits_.unfinished_bytes) overfull_since_ = absl::InfiniteFuture();
}

void FrameMeter::AddCaller() {
  if (std::exchange(has_caller_, true)) return;
  for (auto& [stream, messages] : streams_) messages.bytes = 0;
  unfinished_bytes_ = 0;
  overfull_since_ = absl::InfiniteFuture();
}

void FrameMeter::AgeStreams(absl::Time now) {
  if (now - opened_ >= kEarly) aged_stream_ = last_stream_;
  if (now - mark_ < kEarly) return;
  aged_stream_ = std::max(aged_stream_, mark_stream_);
  mark_stream_ = last_stream_;
  mark_ = now;
}

size_t FrameMeter::MayRead(absl::Time now, double most_calls) {
  const double calls = std::min(calls_.Left(now), most_calls);
  const double frames = frames_.Left(now);
  if (calls <= 0 || frames <= 0 || unfinished_bytes_ > limits_.unfinished_bytes) return 0;
  const double most = static_cast<double>(answered_ ? limits_.read_bytes : limits_.new_read_bytes);
  const double paced = std::min({most, calls * kLeastCall, frames * kLeastFrame});
  return static_cast<size_t>(payload_left_) + std::max(kLeastRead, static_cast<size_t>(paced));
}

void FrameMeter::AddAnswer(absl::Time now) {
  if (!answered_) {
    answered_ = true;
    calls_.Widen(limits_.calls, now);
    frames_.Widen(limits_.frames, now);
    pings_.Widen(limits_.pings, now);
    early_resets_.Widen({limits_.answered_resets, limits_.early_resets.per_second}, now);
    early_resets_.Take(limits_.answered_resets - limits_.early_resets.burst, now);
  }
  early_resets_.Add(1);
}

double FrameMeter::TakeNewCalls() { return std::exchange(new_calls_, 0); }

}  // namespace sortition::server
