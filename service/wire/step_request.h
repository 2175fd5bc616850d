// A Step message, validated: the shape of its tensors, and each of its rows on its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/row.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/row_ask.h"
#include "service/wire/frame.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns the kernels' element type; absent if the contract has no such number.
std::optional<kernels::DType> ToDType(v1::DType dtype);

// Returns the number of positions that a row's task has: of tensor rows, or of compact rows.
uint64_t PositionsOf(const v1::StepRow& row);

// Checks the bytes of a tensor, which `why` describes.
std::optional<Refusal> CheckSize(std::string field, uint64_t want, uint64_t have, absl::string_view why);

// Which slice of each row a tensor is.
struct ShardShape {
  uint32_t index = 0;
  uint32_t count = 0;
  uint32_t first_token = 0;
  uint64_t epoch = 0;  // 0 = none
};

// The shape of a whole step. Offsets and sizes have been checked against the payloads.
struct StepShape {
  kernels::DType dtype = kernels::DType::kF32;
  uint32_t vocabulary = 0;          // of a whole row
  std::optional<ShardShape> shard;  // if the tensor is a shard
  uint32_t width = 0;               // elements of a row of the tensor
  uint64_t row_stride = 0;          // bytes
  uint32_t tensor_rows = 0;
  std::optional<size_t> logits_payload;  // absent: every row is compact
  std::optional<size_t> pairs_payload;   // of compact rows
  std::optional<size_t> mask_payload;
  uint32_t mask_rows = 0;
  uint64_t mask_stride = 0;  // bytes
  std::optional<size_t> draft_payload;
  kernels::DType draft_dtype = kernels::DType::kF32;
  uint32_t draft_rows = 0;
  uint64_t draft_stride = 0;         // bytes
  std::vector<uint32_t> first_rows;  // of the step's rows: the tensor row where each begins by default
  absl::Duration timeout = absl::InfiniteDuration();
  int32_t priority = 0;
  bool traced = false;  // the worker records this step's trace

  // Returns the tensors as far as row `index` refers to them.
  StepTensors TensorsOf(uint32_t index) const;
};

// A refusal here concerns every row of the step. `message` holds no unknown fields except in rows. Thread-safe.
std::variant<StepShape, Refusal> ParseStepShape(const v1::Step& message, std::span<const Payload> payloads,
                                                const Limits& limits);

// Convert the contract's enums to an ask's. An unknown value becomes unset.
RowAsk::Mode ToMode(v1::VerifyMode mode);
RowAsk::Sampling ToSampling(v1::DraftSampling sampling);

// Refers to the message.
SparseAsk ToAsk(const v1::SparseProbabilities& sparse);

// Returns the ask of row `index` of a step. Refers to the message, which holds nothing unknown.
RowAsk ToAsk(const v1::StepRow& row, uint32_t index);

}  // namespace sortition::service
