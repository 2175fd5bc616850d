// The fake driver where programs look for a driver: a libcuda.so.1 for them to load. It takes whatever images the build
// has for its own kernels.
#include <memory>

#include "absl/synchronization/notification.h"
#include "tests/cuda/fake_driver_state.h"

namespace sortition::testing::fake_cuda {
namespace {

// As long as the process: the driver is not unloaded.
FakeCudaDriver* const driver = new FakeCudaDriver({.takes_any_image = true});

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

// What programs find by themselves.
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
