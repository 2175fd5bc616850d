// One batch in flight: its stream, events and memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/cuda/context.h"
#include "devices/cuda/memory.h"
#include "devices/device.h"
#include "kernels/cuda/chunk.h"

namespace sortition::devices::cuda {

// Not thread-safe; several lanes of one context may run at once.
class Lane {
 public:
  // `most_bytes`: device memory that a batch may take; one that needs more runs in chunks.
  static absl::StatusOr<std::unique_ptr<Lane>> Create(std::shared_ptr<Context> context, uint64_t most_bytes);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Samples the rows; appends one output for each to `*outputs` and adds the time on the device to `*nanoseconds`.
  // Blocks until the batch is done. If the device has too little memory, chunks become smaller. After an error some
  // outputs are missing; UNAVAILABLE means that this process has lost the device. A row in device memory lies in this
  // context's memory, in one segment. If the segment begins at a multiple of 16 bytes and cannot change, it is read in
  // place; otherwise it is first copied within the device.
  absl::Status Run(std::span<const DeviceRow> rows, std::vector<kernels::RowOutput>* outputs, uint64_t* nanoseconds);
  // Makes later runs begin after the work that `stream` has now. FAILED_PRECONDITION while it captures a graph, because
  // the lane's work would not be part of the graph.
  absl::Status WaitFor(StreamHandle stream);

 private:
  Lane(std::shared_ptr<Context> context, uint64_t most_bytes) : context_(std::move(context)), most_bytes_(most_bytes) {}
  absl::Status Open();
  // Samples the first rows, up to `most_bytes`; sets `*taken` to their number.
  absl::Status RunChunk(std::span<const DeviceRow> rows, uint64_t most_bytes, size_t* taken,
                        std::vector<kernels::RowOutput>* outputs, uint64_t* nanoseconds);
  absl::Status Reserve(const kernels::cuda::Chunk& chunk);
  absl::Status Submit(const kernels::cuda::Chunk& chunk, std::span<const DeviceRow> rows);
  // Copies rows within the device that are not read in place, in as few copies as the rows allow.
  absl::Status Copy(const kernels::cuda::Chunk& chunk, std::span<const DeviceRow> rows);
  // Downloads the kept tokens, after the other outputs. Blocks.
  absl::Status DownloadKept(const kernels::cuda::Chunk& chunk);

  const std::shared_ptr<Context> context_;
  const uint64_t most_bytes_;
  StreamHandle stream_ = nullptr;
  EventHandle start_ = nullptr;  // start of the kernels
  EventHandle end_ = nullptr;
  EventHandle done_ = nullptr;  // end of the download
  // Declared after `stream_`, on which they are freed.
  std::unique_ptr<PooledMemory> upload_;
  std::unique_ptr<PooledMemory> work_;
  std::unique_ptr<PooledMemory> download_;
  std::unique_ptr<PinnedMemory> host_upload_;
  std::unique_ptr<PinnedMemory> host_download_;
};

}  // namespace sortition::devices::cuda
