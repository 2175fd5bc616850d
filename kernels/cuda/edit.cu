// Changes of rows' edits, merged where the edits are: one block for each changed row. y counts rows.
//
// Both lists are sorted by token, and so is the merged one. Each element finds its own place in it: as many elements of
// both lists come before it as binary searches and one running sum say, so that no thread waits for what another wrote
// but once.
#include "kernels/cuda/shared.cuh"

namespace sortition::kernels::cuda {
namespace {

// Returns the index of the first edit whose token is not below `token`.
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

// True if the change's token has an edit afterwards.
__device__ bool Stays(const LogitEdit& change) { return (change.flags & kEditGone) == 0; }

__device__ bool Names(const LogitEdit* edits, u32 count, u32 place, u32 token) {
  return place < count && edits[place].token == token;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) SortitionMerge(const EditMerge* merges) {
  const EditMerge merge = merges[blockIdx.y];
  // How far changes move what follows them: one that adds a token by 1, one that takes one away by -1.
  u64 moved = 0;
  for (u32 base = 0; base < merge.change_count; base += kThreads) {
    const u32 i = base + Thread();
    LogitEdit change;
    u32 place = 0;
    u64 moves = 0;
    if (i < merge.change_count) {
      change = merge.changes[i];
      place = PlaceOf(merge.from, merge.from_count, change.token);
      moves = u64{Stays(change)} - u64{Names(merge.from, merge.from_count, place, change.token)};
    }
    const u64 before = moved + SumUpToThis(moves) - moves;
    if (i < merge.change_count) {
      merge.moved[i] = u32(before);
      if (Stays(change)) merge.to[place + u32(before)] = change;
    }
    moved += SumOfAll(moves);
  }
  __syncthreads();
  for (u32 i = Thread(); i < merge.from_count; i += kThreads) {
    const LogitEdit edit = merge.from[i];
    const u32 place = PlaceOf(merge.changes, merge.change_count, edit.token);
    if (Names(merge.changes, merge.change_count, place, edit.token)) continue;
    merge.to[i + (place < merge.change_count ? merge.moved[place] : u32(moved))] = edit;
  }
}

}  // namespace sortition::kernels::cuda
