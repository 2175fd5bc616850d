// Tensors that lie in memory regions, as payloads of their message.
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
#include "service/request/frame.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Payloads that lie in regions, one for each region that a tensor names, in the tensors' order.
using RegionPayloads = absl::InlinedVector<Payload, 1>;

// Returns the payloads of the regions that tensors of the step name; they keep the regions alive. Logits and masks stay
// where they are (Payload::may_change); draft probabilities are copied. `memory` is the stream's connection, null if it
// has none. Refuses a region that is not this connection's with UNKNOWN_REGION. Refuses with OUT_OF_RANGE a range that
// is not within its region or not aligned to its elements, and masks and draft probabilities in a device's memory. The
// message is this process's own copy, so what was checked here stays so. Thread-safe.
std::variant<RegionPayloads, Refusal> FindRegionPayloads(const v1::Step& step, const MemoryConnection* memory);
// Does the same for a mask that is uploaded. The payload may change until it is copied.
std::variant<RegionPayloads, Refusal> FindRegionPayloads(const v1::UploadMask& upload, const MemoryConnection* memory);

// The word that says when the logits are there; none where they are with the step. Refuses a word that is not within a
// region of this connection's, of the host's memory, as above; one for logits that came with the message with
// CONTRADICTION; one for shards with NOT_IMPLEMENTED.
std::variant<std::optional<ReadyWord>, Refusal> FindReadyWord(const v1::LogitsTensor& logits,
                                                              const MemoryConnection* memory);

// The index of a source's payload: one that came with the message, or the one that FindRegionPayloads made of it.
std::variant<size_t, Refusal> FindPayload(const v1::TensorSource& source, std::span<const Payload> payloads,
                                          const std::string& field);

}  // namespace sortition::service
