// Device memory that keeps the logit edits of sequences between steps, so that a step uploads only what changed. Rows
// always carry their whole edits; the cache is a copy that can be lost at any time.
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

// The edit cache of a context, shared by its lanes. An entry holds one list of edits. Entries may vanish at any time:
// the whole list is uploaded then, and may become an entry again. Thread-safe.
class EditCache {
 public:
  // Shorter lists are not cached: an upload costs less than a merge.
  static constexpr size_t kLeastEdits = 64;
  // In a full cache, an entry that was not used for this many chunks makes way for a new one. Younger entries stay:
  // with more lists in turn than the cache has room for, each would be dropped before its next use.
  static constexpr uint64_t kIdleChunks = 256;

  // Takes at most `most_bytes` of the device's memory; 0: nothing is cached.
  EditCache(std::shared_ptr<Context> context, uint64_t most_bytes)
      : context_(std::move(context)), most_bytes_(most_bytes) {}
  // No lease may have entries any more.
  ~EditCache();
  EditCache(const EditCache&) = delete;
  EditCache& operator=(const EditCache&) = delete;

  class Lease;

  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Has room for two versions of a list: a merge reads one and writes the other.
  struct Entry {
    uint64_t list = 0;
    uint64_t version = 0;
    uint32_t count = 0;  // edits of that version
    uint32_t capacity = 0;
    uint32_t half = 0;  // where they are
    DevicePointer memory = 0;
    uint64_t used = 0;  // number of the chunk that used it last
    uint64_t bytes() const { return 2 * uint64_t{capacity} * sizeof(kernels::LogitEdit); }
    DevicePointer address(uint32_t which) const {
      return memory + uint64_t{which} * capacity * sizeof(kernels::LogitEdit);
    }
  };
  using Idle = std::list<Entry>;  // most recently used first

  // Takes the list's entry for one chunk: an empty one if there was none, nothing if another chunk has it.
  std::optional<Entry> Take(uint64_t list) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees the entry's memory and allocates it anew for `capacity` edits, in the order of the stream. Returns false if
  // there is no room: the entry has no memory then.
  bool Allocate(uint32_t capacity, StreamHandle stream, Entry* entry) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns an entry to the cache. Frees it instead if DropIdle was called since chunk `chunk` began.
  void Return(const Entry& entry, uint64_t chunk, StreamHandle stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees an entry that a chunk has taken.
  void Drop(const Entry& entry, StreamHandle stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees all entries that no chunk has taken.
  void DropIdle(StreamHandle stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void Free(const Entry& entry, StreamHandle stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Idle::iterator idle, StreamHandle stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Context> context_;
  const uint64_t most_bytes_;
  mutable absl::Mutex mutex_;
  uint64_t chunks_ ABSL_GUARDED_BY(mutex_) = 0;   // that have begun
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;  // value of chunks_ at the last DropIdle
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;    // of all entries, taken ones included
  Idle idle_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Idle::iterator> by_list_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint64_t> taken_ ABSL_GUARDED_BY(mutex_);
};

// The entries that one chunk has taken; no other chunk uses them meanwhile. The host has waited for the previous
// chunk's end, so no stream has to wait for another. Not thread-safe; the context is current in every call.
class EditCache::Lease {
 public:
  // All work of the chunk runs on `stream`. `cache` may be null: nothing is cached then.
  Lease(EditCache* cache, StreamHandle stream);
  // Without Keep, frees its entries and all idle ones. The stream may still run the chunk.
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // Returns how the edits of the chunk's next row get to the device. Valid as long as this lease and the request live.
  kernels::cuda::EditPath PathOf(const kernels::RowRequest& request);
  // Undoes the last PathOf: its row is left out of the chunk.
  void TakeBack();

  // Returns the entries to the cache. The stream must have done all of the chunk's work.
  void Keep();

 private:
  struct Used {
    Entry entry;
    std::optional<Entry> next;  // the entry after the chunk, if a row changes it
    bool is_read = false;       // by a row of the chunk
  };

  Used* Find(uint64_t list);
  // Uploads all of the row's edits, into the entry if there is room.
  kernels::cuda::EditPath Whole(const kernels::RowRequest& request, Used* used);
  // Returns where to write the row's edits, which replace the entry's.
  DevicePointer Write(const kernels::RowRequest& request, Used* used);

  EditCache* const cache_;
  const StreamHandle stream_;
  uint64_t number_ = 0;
  bool is_kept_ = false;
  bool is_full_ = false;  // the device has no memory for more
  absl::flat_hash_map<uint64_t, Used> used_;
  Used* last_ = nullptr;  // the entry that the last PathOf changed, if any
  std::vector<std::vector<kernels::LogitEdit>> changes_;
};

}  // namespace sortition::devices::cuda
