// What the functions of the fake driver share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "devices/cuda/api.h"
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fake_shared_memory.h"

namespace sortition::testing::fake_cuda {

using namespace devices::cuda;

struct Allocation {
  uint64_t bytes;
  int device;
  bool is_tests;
};

struct State {
  FakeCudaOptions options;
  std::mutex mutex;  // of all that follows
  std::mutex launch_mutex;
  std::map<uint64_t, Allocation> memory;
  FakeSharedMemory shared;
  std::set<void*> registered;
  std::map<StreamHandle, std::pair<DevicePointer, uint32_t>> awaited_values;
  std::vector<std::thread> writers;  // of values, behind the work of their streams
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
  bool is_capturing = false;
  std::function<void(StreamHandle)> work;
  std::map<EventHandle, StreamHandle> recorded;  // where each event was last
  std::set<StreamHandle> awaited;
};
inline State* state = nullptr;
inline thread_local std::vector<ContextHandle> current_contexts;

inline constexpr Result kOk = Result::kSuccess;

inline ContextHandle ContextOf(int device) { return reinterpret_cast<ContextHandle>(uintptr_t(100 + device)); }
inline int DeviceOf(ContextHandle context) { return int(reinterpret_cast<uintptr_t>(context)) - 100; }

// What a call of `function` is to end with, before it does anything.
inline Result Before(const char* function) {
  if (state->sticky != kOk) return state->sticky;
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

// Under the lock.
Result Allocate(uint64_t bytes, int device, bool is_tests, uint64_t* address);
Result Free(uint64_t address);

#define SORTITION_CUDA_FUNCTION(name, symbol, ...) Api::name##Function Fake##name;
#include "devices/cuda/functions.inc"
#undef SORTITION_CUDA_FUNCTION

}  // namespace sortition::testing::fake_cuda
