// Makes payloads of tensors that lie in memory regions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "service/memory/ready_word.h"
#include "service/memory/region_table.h"
#include "service/refusal.h"
#include "service/wire/frame.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Payloads that lie in regions, in the order of the tensors that name them.
using RegionPayloads = absl::InlinedVector<Payload, 1>;

// Returns a payload for each tensor of the step that lies in a region; it keeps the region alive. The bytes stay where
// they are (Payload::may_change). `memory` is the stream's connection to the
// memory socket, null if it has none.
//
// Refuses a region of another connection with UNKNOWN_REGION. Refuses with OUT_OF_RANGE: a range that is not within its
// region or not aligned to the tensor's elements; masks and draft probabilities in a device's memory. Thread-safe.
std::variant<RegionPayloads, Refusal> FindRegionPayloads(const v1::Step& step, const MemoryConnection* memory);
// As above for the mask of an upload, which may change until it is copied.
std::variant<RegionPayloads, Refusal> FindRegionPayloads(const v1::UploadMask& upload, const MemoryConnection* memory);

// Returns the word that tells when the logits are written, or nothing if the step has none. Refuses a word that is not
// in a region of host memory of this connection, as above; with CONTRADICTION a word for logits in the message; with
// NOT_IMPLEMENTED a word for shards of rows.
std::variant<std::optional<SharedReadyWord>, Refusal> FindReadyWord(const v1::LogitsTensor& logits,
                                                                    const MemoryConnection* memory);

// Returns the index of a tensor's payload: one of the message, or the one that FindRegionPayloads made for it.
std::variant<size_t, Refusal> FindPayload(const v1::TensorSource& source, std::span<const Payload> payloads,
                                          const std::string& field);

}  // namespace sortition::service
