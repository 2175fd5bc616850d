// Graphs, by the driver's own functions.
#include "tests/bench/cuda/graph.h"

#include <dlfcn.h>

#include <vector>

#include "kernels/check.h"
#include "tests/bench/suite.h"

namespace sortition::bench {

using devices::cuda::DevicePointer;
using CudaResult = devices::cuda::Result;
using devices::cuda::StreamHandle;

namespace {

void Check(CudaResult result) { SORTITION_CHECK(result == CudaResult::kSuccess); }
DevicePointer ToDevicePointer(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

constexpr int kCaptureThreadLocal = 1;

}  // namespace

// Handles of graphs are pointers.
struct Stream::Functions {
  CudaResult (*begin_capture)(StreamHandle stream, int mode);
  CudaResult (*end_capture)(StreamHandle stream, void** graph);
  CudaResult (*instantiate)(void** executable, void* graph, unsigned long long flags);
  CudaResult (*launch)(void* executable, StreamHandle stream);
  CudaResult (*destroy_executable)(void* executable);
  CudaResult (*destroy)(void* graph);
  CudaResult (*copy)(DevicePointer to, DevicePointer from, size_t bytes, StreamHandle stream);

  explicit Functions(void* driver) {
    const auto find = [&](auto* function, const char* symbol) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(driver, symbol));
      SORTITION_CHECK(*function != nullptr);
    };
    find(&begin_capture, "cuStreamBeginCapture_v2");
    find(&end_capture, "cuStreamEndCapture");
    find(&instantiate, "cuGraphInstantiateWithFlags");
    find(&launch, "cuGraphLaunch");
    find(&destroy_executable, "cuGraphExecDestroy");
    find(&destroy, "cuGraphDestroy");
    find(&copy, "cuMemcpyDtoDAsync_v2");
  }
};

Stream::Stream(std::shared_ptr<devices::cuda::Context> context)
    : context_(std::move(context)),
      current_(*context_),
      functions_(std::make_unique<Functions>(context_->api().library.get())) {
  Check(context_->api().StreamCreate(&stream_, devices::cuda::kStreamNonBlocking));
  Check(context_->api().EventCreate(&start_, devices::cuda::kEventDefault));
  Check(context_->api().EventCreate(&end_, devices::cuda::kEventDefault));
}

Stream::~Stream() {
  context_->api().EventDestroy(start_);
  context_->api().EventDestroy(end_);
  context_->api().StreamDestroy(stream_);
}

std::byte* Stream::Allocate(uint64_t bytes) {
  DevicePointer memory = 0;
  Check(context_->api().MemAlloc(&memory, bytes));
  return reinterpret_cast<std::byte*>(memory);
}

void Stream::Free(std::byte* memory) { Check(context_->api().MemFree(ToDevicePointer(memory))); }

void Stream::Upload(std::byte* to, const void* from, uint64_t bytes) {
  Check(context_->api().MemcpyHtoDAsync(ToDevicePointer(to), from, bytes, stream_));
  Check(context_->api().StreamSynchronize(stream_));
}

void Stream::Copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  Check(functions_->copy(ToDevicePointer(to), ToDevicePointer(from), bytes, stream_));
}

double Stream::TimeGraph(const std::function<void()>& work, int rounds) {
  void* graph = nullptr;
  void* executable = nullptr;
  Check(functions_->begin_capture(stream_, kCaptureThreadLocal));
  work();
  Check(functions_->end_capture(stream_, &graph));
  Check(functions_->instantiate(&executable, graph, 0));
  const double median = TimeCalls([&] { Check(functions_->launch(executable, stream_)); }, rounds);
  Check(functions_->destroy_executable(executable));
  Check(functions_->destroy(graph));
  return median;
}

double Stream::TimeCalls(const std::function<void()>& work, int rounds) {
  work();
  Check(context_->api().StreamSynchronize(stream_));
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    Check(context_->api().EventRecord(start_, stream_));
    work();
    Check(context_->api().EventRecord(end_, stream_));
    Check(context_->api().EventSynchronize(end_));
    float milliseconds = 0;
    Check(context_->api().EventElapsedTime(&milliseconds, start_, end_));
    times.push_back(double(milliseconds) * 1e3);
  }
  return Percentile(std::move(times), 50);
}

}  // namespace sortition::bench
