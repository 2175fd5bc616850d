// Random access to a payload that came in many segments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "devices/device.h"
#include "service/request/frame.h"

namespace sortition::service {

class PayloadView {
 public:
  explicit PayloadView(const Payload& payload);

  // The bytes [offset, offset + size), which lie within the payload.
  absl::InlinedVector<devices::ByteSegment, 2> Slice(uint64_t offset, uint64_t size) const;

  // Of bytes that lie in a device's memory, which Copy cannot read; otherwise null.
  const devices::ImportedMemory* imported() const { return payload_.imported; }

  // The worker may write to the bytes at any time: each is to be read once.
  bool may_change() const { return payload_.may_change; }

  // The same, copied.
  void Copy(uint64_t offset, uint64_t size, void* to) const;

 private:
  const Payload& payload_;
  std::vector<uint64_t> starts_;  // of each segment within the payload
};

}  // namespace sortition::service
