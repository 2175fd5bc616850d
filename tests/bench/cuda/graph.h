// Driver calls that the benchmark needs and the library does not: graphs, copies, and time on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "devices/cuda/context.h"

namespace sortition::bench {

// A stream of the context's, with its functions. Every call asserts that the driver succeeds. Not thread-safe.
class Stream {
 public:
  explicit Stream(std::shared_ptr<devices::cuda::Context> context);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  devices::cuda::StreamHandle handle() const { return stream_; }

  // Memory on the device, freed with the stream's context.
  std::byte* Allocate(uint64_t bytes);
  void Free(std::byte* memory);
  void Upload(std::byte* to, const void* from, uint64_t bytes);

  // Microseconds that the device takes for what `work` puts into the stream: captured into a graph, replayed once
  // untimed and then `rounds` times; the median.
  double TimeGraph(const std::function<void()>& work, int rounds);
  // As TimeGraph, for calls that cannot be captured: they run in turn. If the host is slower than the device, the
  // result is the host's time.
  double TimeCalls(const std::function<void()>& work, int rounds);
  // Puts a copy within the device into the stream.
  void Copy(std::byte* to, const std::byte* from, uint64_t bytes);

 private:
  struct Functions;

  const std::shared_ptr<devices::cuda::Context> context_;
  const devices::cuda::CurrentContext current_;
  const std::unique_ptr<Functions> functions_;
  devices::cuda::StreamHandle stream_ = nullptr;
  devices::cuda::EventHandle start_ = nullptr;
  devices::cuda::EventHandle end_ = nullptr;
};

}  // namespace sortition::bench
