// State that the functions of the fake driver share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "devices/cuda/api.h"
#include "kernels/check.h"
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fake_shared_memory.h"

namespace sortition::testing::fake_cuda {

using namespace devices::cuda;

struct Allocation {
  uint64_t bytes;
  int device;
  bool is_tests;
};

// Work of a graph's launch, in order.
using Work = std::vector<std::function<void()>>;

struct State {
  FakeCudaOptions options;
  std::mutex mutex;  // for all fields below
  std::mutex launch_mutex;
  std::map<uint64_t, Allocation> memory;
  FakeSharedMemory shared;
  std::set<void*> registered;
  std::map<StreamHandle, std::pair<DevicePointer, uint32_t>> awaited_values;
  std::vector<std::thread> writers;     // write values after their streams' work
  std::map<uint64_t, uint64_t> pinned;  // bytes
  std::map<std::string, std::pair<int, Result>> failures;
  Result kernel_fault = Result::kSuccess;
  Result sticky = Result::kSuccess;
  int streams = 0;
  int events = 0;
  int contexts = 0;
  int modules = 0;
  std::map<std::string, uint64_t> calls;
  uint64_t launches = 0;
  std::map<std::string, uint64_t> launches_of;
  uint64_t uploaded_bytes = 0;
  uint64_t downloaded_bytes = 0;
  bool is_capturing = false;         // every stream, as a test says
  StreamHandle capturing = nullptr;  // the stream that is captured into `captured`
  Work captured;
  bool is_invalidated = false;  // the graph that is captured
  int graphs = 0;
  bool is_deferring = false;  // streams' work is done when the host waits for it
  Work deferred;
  size_t done = 0;                          // done entries of `deferred`
  std::map<EventHandle, size_t> before_of;  // how much of `deferred` was there when the event was recorded last
  std::function<void(StreamHandle)> work;
  std::map<EventHandle, StreamHandle> recorded;  // where each event was last
  std::set<StreamHandle> awaited;
};
inline State* state = nullptr;
inline thread_local std::vector<ContextHandle> current_contexts;
inline thread_local CaptureMode capture_mode = CaptureMode::kGlobal;

inline constexpr Result kOk = Result::kSuccess;

inline ContextHandle ContextOf(int device) { return reinterpret_cast<ContextHandle>(uintptr_t(100 + device)); }
inline int DeviceOf(ContextHandle context) { return int(reinterpret_cast<uintptr_t>(context)) - 100; }

inline bool IsOneOf(std::string_view function, std::initializer_list<std::string_view> functions) {
  return std::ranges::find(functions, function) != functions.end();
}

// Returns an error, and invalidates the graph that some thread captures, if the call conflicts with it. Under the lock.
inline Result Conflict(std::string_view function) {
  if (state->capturing == nullptr) return kOk;
  const bool never = IsOneOf(function, {"CtxSynchronize", "MemcpyDtoH"});
  const bool unless_relaxed =
      IsOneOf(function, {"MemAlloc", "MemFree", "MemHostAlloc", "MemFreeHost", "MemHostRegister", "MemHostUnregister",
                         "ModuleLoadData", "EventQuery", "EventSynchronize", "StreamSynchronize"});
  if (!never && (!unless_relaxed || capture_mode == CaptureMode::kRelaxed)) return kOk;
  state->is_invalidated = true;
  return Result::kStreamCaptureUnsupported;
}

// Returns the planted result of a call of `function`, before it does anything.
inline Result Before(const char* function) {
  if (state->sticky != kOk) return state->sticky;
  if (const Result conflict = Conflict(function); conflict != kOk) return conflict;
  const auto failure = state->failures.find(function);
  if (failure == state->failures.end() || --failure->second.first > 0) return kOk;
  const Result error = failure->second.second;
  state->failures.erase(failure);
  return error;
}

// Runs `body` under the lock, unless the call is to fail.
template <typename Body>
Result Call(const char* function, Body body) {
  const std::lock_guard lock(state->mutex);
  const Result before = Before(function);
  if (before != kOk) return before;
  ++state->calls[function];
  return body();
}

// Where work of this stream goes that is not done at once; null: it is. Under the lock.
inline Work* LaterWork(StreamHandle stream) {
  if (stream != nullptr && stream == state->capturing) return &state->captured;
  return state->is_deferring ? &state->deferred : nullptr;
}

// The same for a stream's work, which becomes part of a graph if the stream captures one. `body` keeps no references.
template <typename Body>
Result Put(const char* function, StreamHandle stream, Body body) {
  return Call(function, [&] {
    Work* const later = LaterWork(stream);
    if (later == nullptr) return body();
    later->emplace_back([body] {
      const std::lock_guard lock(state->mutex);
      SORTITION_CHECK(body() == kOk);
    });
    return kOk;
  });
}

// Does all deferred work and waits for writers, which is a wait for the whole device. Without the lock.
void WaitForAll();
// Returns the result of a wait for the device. Under the lock.
Result AfterKernels();

// Does the first `count` of all deferred work, as far as it is not done. Without the lock.
void DoDeferred(size_t count);

// Under the lock.
Result Allocate(uint64_t bytes, int device, bool is_tests, uint64_t* address);
Result Free(uint64_t address);

// Functions that programs call besides Api's; graphs are as opaque as the driver's.
Result FakeStreamBeginCapture(StreamHandle stream, int mode);
Result FakeStreamEndCapture(StreamHandle stream, void** graph);
Result FakeGraphInstantiate(void** executable, void* graph, unsigned long long flags);
Result FakeGraphLaunch(void* executable, StreamHandle stream);
Result FakeGraphExecDestroy(void* executable);
Result FakeGraphDestroy(void* graph);

#define SORTITION_CUDA_FUNCTION(name, symbol, ...) Api::name##Function Fake##name;
#include "devices/cuda/functions.inc"
#undef SORTITION_CUDA_FUNCTION

}  // namespace sortition::testing::fake_cuda
