// Advances sequences: counts the token that a row has drawn, and makes its next draw ready. One block for each row. y
// counts rows.
#include "kernels/cuda/shared.cuh"

namespace sortition::kernels::cuda {
namespace {

// Returns the index of the first edit of a token >= `token`.
__device__ u32 PlaceOf(const LogitEdit* edits, u32 count, u32 token) {
  u32 low = 0;
  u32 high = count;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (edits[middle].token < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ bool Names(const LogitEdit* edits, u32 count, u32 place, u32 token) {
  return place < count && edits[place].token == token;
}

// Returns the bits of law::PenaltyBits of a token that was drawn `count` times. Each operation is rounded once.
__device__ u32 PenaltyOf(const DeviceSequence& sequence, u32 count) {
  const double penalty = __dsub_rn(__dmul_rn(sequence.minus_frequency, __ll2double_rn(count)), sequence.presence);
  return Flush(__float_as_uint(__double2float_rn(penalty)));
}

// Returns the edit after one more draw of its token.
__device__ LogitEdit Counted(const DeviceSequence& sequence, LogitEdit edit) {
  edit.flags = (edit.flags + (1u << kDrawnShift)) | LogitEdit::kRepeated;
  edit.penalty = PenaltyOf(sequence, edit.flags >> kDrawnShift);
  return edit;
}

// Counts a draw of `token` in the sequence's edits. Returns the number of edits afterwards, 0 if there is no room.
// Called by every thread.
__device__ u32 CountDrawn(const DeviceSequence& sequence, u32 token) {
  LogitEdit* const edits = sequence.edits;
  const u32 count = sequence.edit_count;
  const u32 place = PlaceOf(edits, count, token);
  if (Names(edits, count, place, token)) {
    const LogitEdit before = edits[place];
    if (before.flags >> kDrawnShift == kMostDrawn) return 0;
    __syncthreads();
    if (Thread() == 0) edits[place] = Counted(sequence, before);
    __syncthreads();
    return count;
  }
  if (count == sequence.most_edits) return 0;
  // Moves the edits after the new one, the last ones first.
  __syncthreads();
  for (u32 end = count; end > place;) {
    const u32 moved = min(end - place, kThreads);
    const u32 from = end - 1 - Thread();
    LogitEdit edit;
    if (Thread() < moved) edit = edits[from];
    __syncthreads();
    if (Thread() < moved) edits[from + 1] = edit;
    end -= moved;
  }
  LogitEdit added;
  added.token = token;
  if (Thread() == 0) edits[place] = Counted(sequence, added);
  __syncthreads();
  return count + 1;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) SortitionAdvance(SequenceView view) {
  const u32 place = view.order != nullptr ? view.order[blockIdx.y] : blockIdx.y;
  if (place == kNoSequence) return;
  DeviceSequence sequence = view.sequences[place];
  if (sequence.edits == nullptr) return;
  const bool was_over = sequence.error != RowFault::kNone;
  if (view.follows_draw != 0 && !was_over) {
    sequence.error = view.outputs[blockIdx.y].error;
    sequence.error_token = view.outputs[blockIdx.y].error_token;
    if (sequence.error == RowFault::kNone) {
      const u32 token = view.outputs[blockIdx.y].token;
      const u32 edits = sequence.counts != 0 ? CountDrawn(sequence, token) : sequence.edit_count;
      ++sequence.position;
      if (sequence.counts != 0 && edits == 0) {
        sequence.error = RowFault::kTooManyEdits;
        sequence.error_token = token;
      } else {
        sequence.edit_count = edits;
      }
    }
  }
  RowInput& input = view.inputs[blockIdx.y];
  const u32 shown = PlaceOf(sequence.edits, sequence.edit_count, input.vocabulary);
  __syncthreads();
  if (Thread() != 0) return;
  view.sequences[place] = sequence;
  input.edits = sequence.edits;
  input.edit_count = shown;
  input.position = sequence.position;
  if (view.follows_draw == 0 || !was_over) return;
  // The draw is void.
  view.outputs[blockIdx.y].error = sequence.error;
  view.outputs[blockIdx.y].error_token = sequence.error_token;
  view.tokens[blockIdx.y] = -1;
  if (view.logprobs != nullptr) view.logprobs[blockIdx.y] = 0;
}

}  // namespace sortition::kernels::cuda
