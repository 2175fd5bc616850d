// The fake driver as a library: a libcuda.so.1 for programs to load. It takes any image for its own kernels.
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "tests/cuda/fake_driver_state.h"

namespace sortition::testing::fake_cuda {
namespace {

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Planted faults come from the environment: FAKE_CUDA_FAULT_FILE and FAKE_CUDA_HOLD_FILE set
// FakeCudaOptions::fault_file and hold_file; FAKE_CUDA_FAIL, FUNCTION=ERROR, sets the result of the first call of a
// function of Api.
FakeCudaDriver* Start() {
  auto* const started = new FakeCudaDriver({.takes_any_image = true,
                                            .fault_file = FromEnvironment("FAKE_CUDA_FAULT_FILE"),
                                            .hold_file = FromEnvironment("FAKE_CUDA_HOLD_FILE")});
  const std::string failure = FromEnvironment("FAKE_CUDA_FAIL");
  if (const size_t end = failure.find('='); end != std::string::npos) {
    started->Fail(failure.substr(0, end), Result(std::stoi(failure.substr(end + 1))));
  }
  return started;
}

// Never freed: the driver is not unloaded.
FakeCudaDriver* const driver = Start();

// A stream that is not done until it is released.
struct Hold {
  absl::Notification waiting;
  absl::Notification released;
};
std::shared_ptr<Hold> held;

}  // namespace
}  // namespace sortition::testing::fake_cuda

// For tests in other languages: SetWork, null: none, and SetCapturing.
extern "C" void FakeCudaSetWork(void (*work)(CUstream_st* stream)) {
  sortition::testing::fake_cuda::driver->SetWork(work);
}
// The next wait for a stream ends with FakeCudaRelease; FakeCudaAwaitWaiting blocks until it has begun.
extern "C" void FakeCudaHold() {
  using namespace sortition::testing::fake_cuda;
  held = std::make_shared<Hold>();
  driver->SetWork([hold = held](CUstream_st*) {
    hold->waiting.Notify();
    hold->released.WaitForNotification();
  });
}
extern "C" void FakeCudaAwaitWaiting() { sortition::testing::fake_cuda::held->waiting.WaitForNotification(); }
extern "C" void FakeCudaRelease() {
  using namespace sortition::testing::fake_cuda;
  driver->SetWork(nullptr);
  held->released.Notify();
}
// Makes streams do their work only when the host waits for it; 0: at once, after the remaining work.
extern "C" void FakeCudaDefer(int is_deferring) {
  using namespace sortition::testing::fake_cuda;
  {
    const std::lock_guard lock(state->mutex);
    state->is_deferring = is_deferring != 0;
  }
  if (is_deferring == 0) DoDeferred(SIZE_MAX);
}
// Puts work of a test's into a stream.
extern "C" void FakeCudaEnqueue(CUstream_st* stream, void (*work)(CUstream_st* stream)) {
  sortition::testing::fake_cuda::driver->Enqueue(stream, [stream, work] { work(stream); });
}
// Puts work into a stream that ends with FakeCudaRelease. To be called while streams defer their work.
extern "C" void FakeCudaEnqueueHold(CUstream_st* stream) {
  using namespace sortition::testing::fake_cuda;
  held = std::make_shared<Hold>();
  driver->Enqueue(stream, [hold = held] {
    hold->waiting.Notify();
    hold->released.WaitForNotification();
  });
}
// Returns the number of successful calls of the function of this name in Api.
extern "C" uint64_t FakeCudaCalls(const char* function) {
  return sortition::testing::fake_cuda::driver->calls(function);
}
extern "C" void FakeCudaSetCapturing(int is_capturing) {
  sortition::testing::fake_cuda::driver->SetCapturing(is_capturing != 0);
}

// The dynamic linker asks the first function which one the symbol means.
#define SORTITION_CUDA_FUNCTION(name, symbol, ...)                            \
  extern "C" sortition::devices::cuda::Api::name##Function* Resolve##name() { \
    return &sortition::testing::fake_cuda::Fake##name;                        \
  }                                                                           \
  extern "C" __attribute__((ifunc("Resolve" #name))) sortition::devices::cuda::Api::name##Function symbol;
#include "devices/cuda/functions.inc"
#undef SORTITION_CUDA_FUNCTION

// Functions that programs look up themselves.
using namespace sortition::testing::fake_cuda;
extern "C" Result cuStreamBeginCapture_v2(StreamHandle stream, int mode) {
  return FakeStreamBeginCapture(stream, mode);
}
extern "C" Result cuStreamEndCapture(StreamHandle stream, void** graph) { return FakeStreamEndCapture(stream, graph); }
extern "C" Result cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return FakeGraphInstantiate(executable, graph, flags);
}
extern "C" Result cuGraphLaunch(void* executable, StreamHandle stream) { return FakeGraphLaunch(executable, stream); }
extern "C" Result cuGraphExecDestroy(void* executable) { return FakeGraphExecDestroy(executable); }
extern "C" Result cuGraphDestroy(void* graph) { return FakeGraphDestroy(graph); }
