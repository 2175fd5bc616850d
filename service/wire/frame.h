// One message of a stream, taken apart: the small part as a protobuf message, the bulk bytes as views of where they
// lie.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "devices/device.h"
#include "service/refusal.h"
#include "service/wire/wire_scan.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// A place in a memory region, as a message names it.
struct RegionRange {
  uint64_t region_id = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const RegionRange&) const = default;
};

// Bulk bytes, in the segments in which the network delivered them, or in one segment of shared memory.
struct Payload {
  std::vector<devices::ByteSegment> segments;  // none empty
  uint64_t size = 0;
  std::optional<RegionRange> range = std::nullopt;    // set if the payload lies in a region
  std::shared_ptr<const void> owner = nullptr;        // the same: keeps its bytes alive
  const devices::ImportedMemory* imported = nullptr;  // set if the payload lies in a device's memory
  // The worker may write to the bytes at any time: each is to be read once.
  bool may_change = false;
};

struct Frame {
  Frame() : Frame(std::make_shared<v1::StreamRequest>()) {}
  Frame(Frame&&) = default;
  Frame& operator=(Frame&& other) noexcept {
    std::destroy_at(this);
    return *std::construct_at(this, std::move(other));
  }
  explicit Frame(std::shared_ptr<v1::StreamRequest> parsed) : message(*parsed), memory(std::move(parsed)) {}

  v1::StreamRequest& message;     // without `payloads`; in an arena, unless it is a step of few parts
  std::shared_ptr<void> memory;   // of `message`
  std::vector<Payload> payloads;  // the message's field `payloads`, in order
  // Keeps the payloads' bytes alive. A user of a payload holds a reference.
  std::shared_ptr<const void> owner;
  uint64_t bytes = 0;          // size of the whole encoded message
  uint64_t message_bytes = 0;  // the same without payloads
  WireScan scan;               // facts about the encoding that protobuf has dropped from `message`
};

// Makes an empty Step, for DecodeFrame: maybe one that has memory from an earlier use.
using NewStep = absl::FunctionRef<std::unique_ptr<v1::Step>()>;
inline std::unique_ptr<v1::Step> MakeStep() { return std::make_unique<v1::Step>(); }

// Takes an encoded StreamRequest apart without copying its payloads. `segments` are the message's bytes in order and
// live as long as `owner`. A step of few parts is parsed into one of `new_step`. Refuses bytes that are no message of
// the contract with MALFORMED_MESSAGE, more than kMaxPayloads payloads, kMaxFieldBytes, kMaxMessageParts parts
// (wire_scan.h) or max_step_positions rows with TOO_MANY, before it parses them, and two kinds with CONTRADICTION.
// Thread-safe.
std::variant<Frame, Refusal> DecodeFrame(std::span<const devices::ByteSegment> segments,
                                         std::shared_ptr<const void> owner, NewStep new_step = MakeStep,
                                         const Limits& limits = Limits());

}  // namespace sortition::service
