// A CUDA driver for tests: its devices' memory is the host's, and its kernels run in the emulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "devices/cuda/api.h"
#include "kernels/cuda/image.h"

namespace sortition::testing {

struct FakeCudaOptions {
  int devices = 1;
  int capability = 90;
  int multiprocessors = 4;
  uint64_t memory_bytes = uint64_t{1} << 40;  // of each device
  bool shares_memory = true;
  bool has_memory_pools = true;
  // Result of asking for access to read alone.
  devices::cuda::Result read_access = devices::cuda::Result::kSuccess;
  bool takes_any_image = false;  // a real one, too, and runs the emulated kernels of those names
  std::string fault_file = "";   // where there is one, kernels fault: FailKernel for whole programs
  std::string hold_file = "";    // while there is one, no wait for an event ends
};

// A call that conflicts with a graph that is captured fails and invalidates the graph, as with the driver: one that
// waits for all work or uses the null stream; and, unless the calling thread's capture mode is relaxed, one that
// allocates, frees, waits or asks for an event.
//
// There is one in a process at a time: the driver's functions know no object. Thread-safe. The destructor fails the
// test that runs if anything is left that should have been given back. Memory that it shares crosses processes as a
// driver's does, if each has such a driver.
class FakeCudaDriver {
 public:
  explicit FakeCudaDriver(const FakeCudaOptions& options = {});
  ~FakeCudaDriver();
  FakeCudaDriver(const FakeCudaDriver&) = delete;
  FakeCudaDriver& operator=(const FakeCudaDriver&) = delete;

  devices::cuda::Api api() const;

  // Makes the `nth` later call of the function of this name in Api end with `error`, without other effect.
  void Fail(const std::string& function, devices::cuda::Result error, int nth = 1);
  // A kernel's fault: it surfaces where the host next waits, and ends that call and all later ones.
  void FailKernel(devices::cuda::Result error);

  // All streams capture graphs, or none does.
  void SetCapturing(bool is_capturing);

  // Captures the work that `work` puts into the stream as a graph, and does none of it. Each call of the result does it
  // all. Fails the test, and returns null, if a call has invalidated the graph. The result must not outlive the driver.
  std::function<void()> Capture(devices::cuda::StreamHandle stream, const std::function<void()>& work);

  // Defers later work of streams until the host waits for a stream or an event, and then does it in order, up to that
  // point. The driver then looks like one stream.
  void Defer();
  // Puts work of a test's into a stream.
  void Enqueue(devices::cuda::StreamHandle stream, std::function<void()> work);

  // Sets the work of streams, which they do whenever the host waits for one.
  void SetWork(std::function<void(devices::cuda::StreamHandle)> work);

  uint64_t launches() const;
  // Returns the number of launches of the kernel of that name.
  uint64_t launches(const std::string& kernel) const;
  // Returns the number of successful calls of the function of this name in Api.
  uint64_t calls(const std::string& function) const;
  uint64_t uploaded_bytes() const;
  uint64_t downloaded_bytes() const;
  // True if another stream has waited for work of this one.
  bool is_awaited(devices::cuda::StreamHandle stream) const;
  // The value that it was last told to wait for has not been written.
  bool is_waiting(devices::cuda::StreamHandle stream) const;

  // Returns stand-ins for the kernels' images.
  static kernels::cuda::Images Images();
  // Memory of the device, for tests that have no other way to it; freed with the driver.
  void* Allocate(uint64_t bytes, int device = 0);
};

}  // namespace sortition::testing
