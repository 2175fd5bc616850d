// Encodes stream messages so that bulk bytes are never copied: a serialized header, then the caller's memory in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/options.h"
#include "client/cpp/pending.h"
#include "client/cpp/shared_memory.h"
#include "client/cpp/transport.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// The runs of bytes that make up one payload, in order.
using PayloadRuns = std::vector<std::span<const std::byte>>;

// `header` has no payloads of its own. The borrowed bytes live as long as `hold`.
OutgoingMessage EncodeMessage(const v1::StreamRequest& header, std::span<const PayloadRuns> payloads,
                              std::shared_ptr<void> hold);

// Whether the rows of `batch` lie in `memory` one right after the other, so that steps name them; null: they do not.
bool IsShared(const PendingBatch& batch, const SharedMemory* memory);

// What all ranks say alike of a row's step at `position`.
void DescribeAsked(const PendingRow& row, uint32_t position, v1::StepRow* message);

// The place of the word by which the batch's rows are ready; nothing if there is none or the server cannot see it.
std::optional<Place> FindWord(const PendingBatch& batch, const SharedMemory* memory);

// The slice that a step's rows are.
struct OutgoingShard {
  VocabularyShard shard;
  uint64_t epoch = 0;  // of the stream
};

// A Step with the rows of `batch` at the indexes `rows`, whose sequences can describe their step. `timeout` as on the
// wire. Tensors that lie in `memory`, if there is one, are named; others are copied into it if there is room, and then
// lie there until `*leases` goes; what is left travels within the message. Rows in a device's memory lie in one
// region of `memory`, one right after the other. `shard` is null where rows are whole.
struct OutgoingKind {
  const OutgoingShard* shard = nullptr;
  bool names_word = false;  // by which the rows are ready, which FindWord has found
};
OutgoingMessage EncodeStep(uint64_t batch_id, const PendingBatch& batch, std::span<const uint32_t> rows,
                           absl::Duration timeout, std::shared_ptr<void> hold, OutgoingKind kind = {},
                           SharedMemory* memory = nullptr, std::vector<std::shared_ptr<void>>* leases = nullptr);

}  // namespace sortition::client
