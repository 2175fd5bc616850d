// Encodes stream messages without copying bulk bytes: a serialized header, then references to the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/pending.h"
#include "client/cpp/transport/shared_memory.h"
#include "client/cpp/transport/transport.h"
#include "sortition/options.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// The runs of bytes of one payload, in order.
using PayloadRuns = std::vector<std::span<const std::byte>>;

// Encodes `header`, which has no payloads, with `payloads` and, if there is one, a last payload `own`. The borrowed
// bytes live as long as `hold`.
OutgoingMessage EncodeMessage(const v1::StreamRequest& header, std::span<const PayloadRuns> payloads,
                              std::shared_ptr<void> hold, std::optional<std::string> own = {});

// True if the rows of `batch` lie in `memory` and are adjacent, so that steps can name them. `memory` may be null.
bool IsShared(const PendingBatch& batch, const SharedMemory* memory);

// Sets the fields of a row's step at `position` that are the same on all ranks.
void DescribeAsked(const PendingRow& row, uint32_t position, v1::StepRow* message);

// Returns the place of the batch's ready word in `memory`; nothing if there is no word or the server cannot see it.
std::optional<MemoryPlace> FindWord(const PendingBatch& batch, const SharedMemory* memory);

// The shard that a step's rows are, as it is sent.
struct OutgoingShard {
  VocabularyShard shard;
  uint64_t epoch = 0;  // of the stream
};

// Variants of a step message. `shard` is null if rows are whole.
struct OutgoingKind {
  const OutgoingShard* shard = nullptr;
  bool names_word = false;  // the message names the ready word, which FindWord has found
};

// Encodes a Step with the rows of `batch` at the indexes `rows`, whose sequences can describe their step. Rows that
// have a compact form travel in it within the message. Tensors in `memory`, which may be null, are named. Others are
// copied into it if there is room, and stay there until `*leases` are dropped, or else travel within the message. Rows
// in device memory must be adjacent and in one region of `memory`.
OutgoingMessage EncodeStep(uint64_t batch_id, const PendingBatch& batch, std::span<const uint32_t> rows,
                           absl::Duration timeout, std::shared_ptr<void> hold, OutgoingKind kind = {},
                           SharedMemory* memory = nullptr, std::vector<std::shared_ptr<void>>* leases = nullptr);

}  // namespace sortition::client
