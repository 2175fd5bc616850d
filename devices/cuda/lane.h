// One batch in flight: its stream, events and memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/cuda/context.h"
#include "devices/cuda/edit_cache.h"
#include "devices/cuda/memory.h"
#include "devices/device.h"
#include "kernels/cuda/slice.h"

namespace sortition::devices::cuda {

// Not thread-safe; several lanes of one context may run at once.
class Lane {
 public:
  // `most_bytes` of device memory that a batch may take; one that needs more runs in slices.
  // `cache`, which may be null, is that of the context, shared by its lanes.
  static absl::StatusOr<std::unique_ptr<Lane>> Create(std::shared_ptr<Context> context, uint64_t most_bytes,
                                                      std::shared_ptr<EditCache> cache = nullptr);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Samples the rows and appends one answer for each to `*answers`, and the time on the device to `*nanoseconds`.
  // Blocks until they are there. If the device has too little memory, the edit cache is dropped, then slices
  // become smaller. An error leaves some rows out; if it is UNAVAILABLE, the device is lost to this process. A row
  // whose memory is not the host's lies in the context's, in one segment. Where that begins at a multiple of 16 bytes
  // and cannot change, it is read in place; otherwise it is copied within the device first.
  absl::Status Run(std::span<const DeviceRow> rows, std::vector<kernels::RowOutput>* answers, uint64_t* nanoseconds);
  // What is run from now on begins after the work that `stream` has by now. FAILED_PRECONDITION while it captures a
  // graph: the lane's work would not be part of it.
  absl::Status WaitFor(StreamHandle stream);

 private:
  Lane(std::shared_ptr<Context> context, uint64_t most_bytes, std::shared_ptr<EditCache> cache)
      : context_(std::move(context)), most_bytes_(most_bytes), cache_(std::move(cache)) {}
  absl::Status Open();
  // Samples as many rows, from the first, as fit `most_bytes`; `*taken` of them. `cache` may be null.
  absl::Status RunSlice(std::span<const DeviceRow> rows, uint64_t most_bytes, EditCache* cache, size_t* taken,
                        std::vector<kernels::RowOutput>* answers, uint64_t* nanoseconds);
  absl::Status Reserve(const kernels::cuda::Slice& slice);
  absl::Status Submit(const kernels::cuda::Slice& slice, std::span<const DeviceRow> rows);
  // Within the device, what is not read in place, in as few copies as the rows allow.
  absl::Status Copy(const kernels::cuda::Slice& slice, std::span<const DeviceRow> rows);
  // Blocks, once the rest has been downloaded.
  absl::Status DownloadKept(const kernels::cuda::Slice& slice);

  const std::shared_ptr<Context> context_;
  const uint64_t most_bytes_;
  const std::shared_ptr<EditCache> cache_;
  StreamHandle stream_ = nullptr;
  EventHandle start_ = nullptr;  // of the kernels
  EventHandle end_ = nullptr;
  EventHandle done_ = nullptr;  // with the download
  // After `stream_`, which they are freed on.
  std::unique_ptr<DeviceMemory> upload_;
  std::unique_ptr<DeviceMemory> work_;
  std::unique_ptr<DeviceMemory> download_;
  std::unique_ptr<PinnedMemory> host_upload_;
  std::unique_ptr<PinnedMemory> host_download_;
};

}  // namespace sortition::devices::cuda
