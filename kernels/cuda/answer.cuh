// Takes in a row's input, and writes the row's outcome to the batch.
#pragma once

#include "kernels/cuda/row.cuh"

namespace sortition::kernels::cuda {

__device__ inline void OpenInput(const BatchView& batch) {
  Shared& shared = OnChip();
  static_assert(sizeof(RowInput) % 4 == 0 && sizeof(RowInput) / 4 <= kThreads);
  const u32* const from = reinterpret_cast<const u32*>(batch.inputs + blockIdx.y);
  if (Thread() < sizeof(RowInput) / 4) reinterpret_cast<u32*>(&shared.input)[Thread()] = from[Thread()];
  __syncthreads();
  if (Thread() == 0 && shared.input.position_at != nullptr) shared.input.position = *shared.input.position_at;
  __syncthreads();
}

__device__ inline void Answer(const Row& row, const BatchView& batch, u32 token) {
  if (Thread() != 0) return;
  row.output.error = RowFault::kNone;
  row.output.error_token = 0;
  row.output.token = token;
  if (batch.tokens != nullptr) batch.tokens[blockIdx.y] = i32(token);
}

__device__ inline void Fail(const Row& row, const BatchView& batch, RowFault error, u32 token) {
  if (Thread() != 0) return;
  row.state.pending = 0;
  row.output.error = error;
  row.output.error_token = token;
  if (batch.tokens != nullptr) batch.tokens[blockIdx.y] = -1;
  if (batch.logprobs != nullptr) batch.logprobs[blockIdx.y] = 0;
}

// Writes the logprob of the row's token, once it is known.
__device__ inline void AnswerLogprob(const Row& row, const BatchView& batch) {
  if (Thread() != 0 || batch.logprobs == nullptr) return;
  float logprob = 0;
  if (row.Has(kFlagProcessed)) logprob = row.output.processed.logprob;
  if (row.Has(kFlagRaw)) logprob = row.output.raw.logprob;
  batch.logprobs[blockIdx.y] = logprob;
}

}  // namespace sortition::kernels::cuda
