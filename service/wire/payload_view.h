// Random access to a payload that may have several segments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "devices/device.h"
#include "service/wire/frame.h"

namespace sortition::service {

class PayloadView {
 public:
  explicit PayloadView(const Payload& payload);

  uint64_t size() const { return payload_.size; }

  // Returns the bytes [offset, offset + size) as segments, in order. They must lie within the payload.
  absl::InlinedVector<devices::ByteSegment, 2> Slice(uint64_t offset, uint64_t size) const;

  // The device memory that the payload lies in, which Copy cannot read. Null: host memory.
  const devices::ImportedMemory* imported() const { return payload_.imported; }

  // True if the worker may write to the bytes at any time. Each byte must then be read only once.
  bool may_change() const { return payload_.may_change; }

  // Copies the bytes [offset, offset + size) to `to`.
  void Copy(uint64_t offset, uint64_t size, void* to) const;

 private:
  const Payload& payload_;
  std::vector<uint64_t> starts_;  // offset of each segment within the payload
};

}  // namespace sortition::service
