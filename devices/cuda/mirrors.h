// Copies of sequences' edits on the device, so that a step uploads what changed: mirrors, never the truth.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "devices/cuda/context.h"
#include "kernels/cuda/chunk.h"
#include "kernels/row.h"

namespace sortition::devices::cuda {

// Thread-safe. The mirrors of a context, which its lanes take turns with. Any of them may be gone at any time: the
// whole list is uploaded then, and may become one again.
class Mirrors {
 public:
  // Shorter lists are uploaded at less cost than they are merged.
  static constexpr size_t kLeastEdits = 64;
  // Where all room is taken, a mirror that was not used for so many chunks gives way to a new one. Others do not: where
  // more lists take turns than there is room for, each would be gone before its next turn.
  static constexpr uint64_t kIdleSlices = 256;

  // `most_bytes` of the device's memory, in all; 0: none are kept.
  Mirrors(std::shared_ptr<Context> context, uint64_t most_bytes)
      : context_(std::move(context)), most_bytes_(most_bytes) {}
  // Needs that no chunk has any.
  ~Mirrors();
  Mirrors(const Mirrors&) = delete;
  Mirrors& operator=(const Mirrors&) = delete;

  class OfSlice;

  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Has room for two lists: a merge reads one and writes the other.
  struct Mirror {
    uint64_t list = 0;
    uint64_t version = 0;
    uint32_t count = 0;  // edits of that version
    uint32_t capacity = 0;
    uint32_t half = 0;  // where they are
    DevicePointer memory = 0;
    uint64_t used = 0;  // the chunk's number
    uint64_t bytes() const { return 2 * uint64_t{capacity} * sizeof(kernels::LogitEdit); }
    DevicePointer address(uint32_t which) const {
      return memory + uint64_t{which} * capacity * sizeof(kernels::LogitEdit);
    }
  };
  using Idle = std::list<Mirror>;  // the last used first

  // The mirror of the list, empty if there was none, for this chunk alone; absent if another chunk has it.
  std::optional<Mirror> Take(uint64_t list) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the mirror memory for `capacity` edits twice, in the order of the stream, and takes what it had. False if
  // there is no room: it has none then.
  bool Allocate(uint32_t capacity, StreamHandle stream, Mirror* mirror) ABSL_LOCKS_EXCLUDED(mutex_);
  // Back to the others, if it has memory; unless all have been dropped since chunk `chunk` began.
  void Return(const Mirror& mirror, uint64_t chunk, StreamHandle stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(const Mirror& mirror, StreamHandle stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropIdle(StreamHandle stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void Free(const Mirror& mirror, StreamHandle stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Idle::iterator idle, StreamHandle stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Context> context_;
  const uint64_t most_bytes_;
  mutable absl::Mutex mutex_;
  uint64_t slices_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;  // the last chunk that had begun when all were dropped
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;    // of all, also of those that chunks have
  Idle idle_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Idle::iterator> by_list_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint64_t> taken_ ABSL_GUARDED_BY(mutex_);
};

// The mirrors that one chunk has to itself. The host has waited for the chunk before to end, so no stream has to wait
// for another. Not thread-safe; the context is current in every call.
class Mirrors::OfSlice {
 public:
  // `stream`: of all the chunk's work. A null `mirrors` has none.
  OfSlice(Mirrors* mirrors, StreamHandle stream);
  // Without Keep no mirror is left, of this chunk or any other. The stream may still be at work.
  ~OfSlice();
  OfSlice(const OfSlice&) = delete;
  OfSlice& operator=(const OfSlice&) = delete;

  // How the edits of the chunk's next row come to the device. Valid as long as this and the request are.
  kernels::cuda::EditPath PathOf(const kernels::RowRequest& request);
  // The row of the last PathOf is not of the chunk.
  void TakeBack();

  // The stream has done all of the chunk's work.
  void Keep();

 private:
  struct Used {
    Mirror mirror;
    std::optional<Mirror> next;  // what a row of the chunk leaves there
    bool is_read = false;        // by a row of the chunk
  };

  Used* Find(uint64_t list);
  // All of the row's edits, which the mirror becomes if there is room.
  kernels::cuda::EditPath Whole(const kernels::RowRequest& request, Used* used);
  // Where the row's edits are to be for the mirror to become them.
  DevicePointer Write(const kernels::RowRequest& request, Used* used);

  Mirrors* const mirrors_;
  const StreamHandle stream_;
  uint64_t number_ = 0;
  bool is_kept_ = false;
  bool is_full_ = false;  // the device has no memory for more
  absl::flat_hash_map<uint64_t, Used> used_;
  Used* last_ = nullptr;  // whose `next` the last row set, until the next one
  std::vector<std::vector<kernels::LogitEdit>> changes_;
};

}  // namespace sortition::devices::cuda
