// The fake driver where programs look for a driver: a libcuda.so.1 for them to load. It takes whatever images the build
// has for its own kernels.
#include "tests/cuda/fake_driver_state.h"

namespace sortition::testing::fake_cuda {
namespace {

// As long as the process: the driver is not unloaded.
FakeCudaDriver* const driver = new FakeCudaDriver({.takes_any_image = true});

}  // namespace
}  // namespace sortition::testing::fake_cuda

// For tests in other languages: SetWork, null: none, and SetCapturing.
extern "C" void FakeCudaSetWork(void (*work)(CUstream_st* stream)) {
  sortition::testing::fake_cuda::driver->SetWork(work);
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
