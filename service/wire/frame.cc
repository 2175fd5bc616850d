// Splits an encoded StreamRequest into its small fields, parsed, and its payloads, left in place.
#include "service/wire/frame.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/arena_message.h"
#include "service/checks.h"
#include "service/limits.h"
#include "service/wire/wire_scan.h"

namespace sortition::service {
namespace {

constexpr uint32_t kPayloadsField = v1::StreamRequest::kPayloadsFieldNumber;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

// Longest encodings that protobuf reads.
constexpr uint32_t kKeyBytes = 5;
constexpr uint32_t kLengthBytes = 5;
constexpr uint32_t kValueBytes = 10;

// Reads forward over segments that belong together.
class SegmentReader {
 public:
  explicit SegmentReader(std::span<const devices::ByteSegment> segments) : segments_(segments) { SkipEmpty(); }

  bool AtEnd() const { return index_ == segments_.size(); }

  // False at the end, or if the varint is longer than `most_bytes`, at most 10. Appends the bytes read to `*copy`.
  bool ReadVarint(uint32_t most_bytes, uint64_t* value, std::string* copy) {
    *value = 0;
    for (uint32_t shift = 0; shift < 7 * most_bytes; shift += 7) {
      if (AtEnd()) return false;
      const uint8_t byte = static_cast<uint8_t>(segments_[index_].data[offset_]);
      Advance(1);
      copy->push_back(static_cast<char>(byte));
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  // Calls `visit` with each run of the next `size` bytes; false if there are fewer.
  template <typename Visit>
  bool Take(uint64_t size, Visit visit) {
    while (size > 0) {
      if (AtEnd()) return false;
      const devices::ByteSegment& segment = segments_[index_];
      const size_t run = std::min<uint64_t>(size, segment.size - offset_);
      visit(devices::ByteSegment{segment.data + offset_, run});
      Advance(run);
      size -= run;
    }
    return true;
  }

 private:
  void Advance(size_t bytes) {
    offset_ += bytes;
    if (offset_ == segments_[index_].size) {
      ++index_;
      offset_ = 0;
      SkipEmpty();
    }
  }
  void SkipEmpty() {
    while (index_ < segments_.size() && segments_[index_].size == 0) ++index_;
  }

  std::span<const devices::ByteSegment> segments_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

// Parts of a step above which it is parsed in an arena: they are made and freed in a third of the time.
constexpr uint32_t kFewParts = 4096;

Refusal Malformed(std::string message) { return Refusal{Reason::kMalformedMessage, "", "", std::move(message)}; }

}  // namespace

std::variant<Frame, Refusal> DecodeFrame(std::span<const devices::ByteSegment> segments,
                                         std::shared_ptr<const void> owner, NewStep new_step, const Limits& limits) {
  uint64_t bytes = 0;
  for (const devices::ByteSegment& segment : segments) bytes += segment.size;

  SegmentReader reader(segments);
  std::vector<Payload> payloads;
  std::string small;  // every field but the payloads
  bool is_step = false;
  const auto copy = [&](devices::ByteSegment run) { small.append(reinterpret_cast<const char*>(run.data), run.size); };
  while (!reader.AtEnd()) {
    std::string key;
    uint64_t tag;
    if (!reader.ReadVarint(kKeyBytes, &tag, &key)) return Malformed("truncated field key");
    // protobuf would drop the upper bits and might find a payload where this reader saw none.
    if (tag > std::numeric_limits<uint32_t>::max()) return Malformed("a field key of more than 32 bits");
    const uint64_t field = tag >> 3;
    const uint32_t wire_type = tag & 7;
    if (field == kPayloadsField && wire_type == kLengthDelimited) {
      uint64_t size;
      Payload payload;
      if (auto refusal = CheckCount(payloads.size() + 1, Bounds::max_payloads(), "payloads")) return *refusal;
      if (!reader.ReadVarint(kLengthBytes, &size, &key) ||
          !reader.Take(size, [&](devices::ByteSegment run) { payload.segments.push_back(run); })) {
        return Malformed("truncated payload");
      }
      payload.size = size;
      payloads.push_back(std::move(payload));
      continue;
    }
    is_step |= field == v1::StreamRequest::kStepFieldNumber && wire_type == kLengthDelimited;
    small += key;
    uint64_t value = 0;
    bool complete = false;
    switch (wire_type) {
      case kVarint:
        complete = reader.ReadVarint(kValueBytes, &value, &small);
        break;
      case kFixed64:
        complete = reader.Take(8, copy);
        break;
      case kFixed32:
        complete = reader.Take(4, copy);
        break;
      case kLengthDelimited:
        if (!reader.ReadVarint(kLengthBytes, &value, &small)) break;
        if (value <= bytes && small.size() + value > kMaxFieldBytes) {
          return *CheckByteCount(small.size() + value, Bounds::max_field_bytes(), "message");
        }
        small.reserve(small.size() + std::min(value, bytes));
        complete = reader.Take(value, copy);
        break;
      default:
        return Malformed("a wire type that proto3 does not have");
    }
    if (!complete) return Malformed("truncated field");
  }
  const Bound most_rows = Bounds(limits).max_step_positions();
  WireScan scan = ScanStream(small, static_cast<uint32_t>(most_rows.value));
  if (auto refusal = WhyNotRead(scan, "step.rows", most_rows, "StreamRequest")) return *std::move(refusal);
  const bool is_short_step = is_step && scan.parts <= kFewParts;
  Frame frame(is_short_step ? std::make_shared<v1::StreamRequest>() : NewWithArena<v1::StreamRequest>());
  frame.payloads = std::move(payloads);
  frame.owner = std::move(owner);
  frame.bytes = bytes;
  frame.message_bytes = small.size();
  frame.scan = std::move(scan);
  if (is_short_step) frame.message.set_allocated_step(new_step().release());
  // Without this, protobuf doubles the list as it reads, which takes longer than its tokens.
  if (const uint32_t tokens = frame.scan.history_tokens; tokens > 0) {
    frame.message.mutable_open()->mutable_history()->mutable_tokens()->Reserve(static_cast<int>(tokens));
  }
  if (!frame.message.MergeFromString(small)) return Malformed("not a sortition.v1.StreamRequest");
  for (SetTwice& twice : frame.scan.set_twice) {
    // An answer cannot say which of two kinds it is for.
    if (!absl::StrContains(twice.refusal.field, '.')) return std::move(twice.refusal);
  }
  return frame;
}

}  // namespace sortition::service
