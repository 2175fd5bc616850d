// Slices, and what they hold.
#include "client/cpp/byte_buffer.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace sortition::client {
namespace {

// A message's hold for as long as gRPC keeps one of its slices; it lets go of them one by one. Stored with release and
// counted down with acquire, so that the hand-over is ordered by our own means, whatever gRPC's are.
struct SliceHold {
  std::shared_ptr<void> hold;
  std::atomic<size_t> slices;

  static void EndSlice(void* self) {
    auto* held = static_cast<SliceHold*>(self);
    if (held->slices.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held;
  }
};

}  // namespace

grpc::ByteBuffer ToByteBuffer(OutgoingMessage message) {
  const auto borrowed = [](const Segment& segment) { return !segment.borrowed.empty(); };
  const auto count = static_cast<size_t>(std::ranges::count_if(message.segments, borrowed));
  SliceHold* held = nullptr;
  if (count > 0) {
    held = new SliceHold{std::move(message.hold), {}};
    held->slices.store(count, std::memory_order_release);
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(message.segments.size());
  for (const Segment& segment : message.segments) {
    if (borrowed(segment)) {
      slices.emplace_back(const_cast<std::byte*>(segment.borrowed.data()), segment.borrowed.size(), SliceHold::EndSlice,
                          held);
    } else {
      slices.emplace_back(segment.owned);
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace sortition::client
