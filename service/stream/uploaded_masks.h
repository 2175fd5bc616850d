// Holds the packed masks that a stream has uploaded and that its steps refer to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "service/limits.h"
#include "service/memory/mask_memory.h"
#include "service/refusal.h"
#include "service/wire/frame.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// The masks of one stream: at most `stream_masks`, of `stream_mask_bytes` together. Not thread-safe.
class UploadedMasks {
 public:
  // `memory` is not owned and outlives this.
  UploadedMasks(const Limits& limits, MaskMemory* memory) : limits_(limits), memory_(*memory) {}

  // Stores the uploaded mask under its id, in place of a former one. An upload without a mask releases the former one.
  // A refusal changes nothing. `payloads` are the message's own, followed by FindRegionPayloads'.
  std::optional<Refusal> Upload(const v1::UploadMask& upload, std::span<const Payload> payloads);

  // Returns the mask of this id for a row of `vocabulary` elements. Refusals name `field`.
  std::variant<std::shared_ptr<const PackedMask>, Refusal> Find(uint64_t mask_id, uint32_t vocabulary,
                                                                const std::string& field) const;

 private:
  const Limits limits_;
  MaskMemory& memory_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const PackedMask>> masks_;
  uint64_t bytes_ = 0;  // of masks_
};

}  // namespace sortition::service
