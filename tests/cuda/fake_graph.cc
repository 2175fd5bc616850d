// The fake driver's graphs: the work that a stream got while it captured, done at each launch.
#include <gtest/gtest.h>

#include <memory>

#include "tests/cuda/fake_driver_state.h"

namespace sortition::testing {
namespace fake_cuda {
namespace {

void* Opaque(const Work& work) {
  ++state->graphs;
  return new Work(work);
}

Result Destroy(void* work) {
  const std::lock_guard lock(state->mutex);
  --state->graphs;
  delete static_cast<Work*>(work);
  return kOk;
}

}  // namespace

Result FakeStreamBeginCapture(StreamHandle stream, int) {
  return Call("StreamBeginCapture", [&] {
    SORTITION_CHECK(stream != nullptr && state->capturing == nullptr);
    state->capturing = stream;
    state->captured.clear();
    state->is_invalidated = false;
    return kOk;
  });
}
Result FakeStreamEndCapture(StreamHandle stream, void** graph) {
  return Call("StreamEndCapture", [&] {
    SORTITION_CHECK(stream == state->capturing);
    state->capturing = nullptr;
    if (state->is_invalidated) return Result::kStreamCaptureInvalidated;
    *graph = Opaque(state->captured);
    return kOk;
  });
}
Result FakeGraphInstantiate(void** executable, void* graph, unsigned long long flags) {
  return Call("GraphInstantiate", [&] {
    SORTITION_CHECK(flags == 0);
    *executable = Opaque(*static_cast<Work*>(graph));
    return kOk;
  });
}
Result FakeGraphLaunch(void* executable, StreamHandle stream) {
  bool is_later = false;
  const Result before = Call("GraphLaunch", [&] {
    Work* const later = LaterWork(stream);
    is_later = later != nullptr;
    if (is_later) std::ranges::copy(*static_cast<Work*>(executable), std::back_inserter(*later));
    return kOk;
  });
  if (before != kOk || is_later) return before;
  for (const auto& work : *static_cast<Work*>(executable)) work();
  return kOk;
}
Result FakeGraphExecDestroy(void* executable) { return Destroy(executable); }
Result FakeGraphDestroy(void* graph) { return Destroy(graph); }

}  // namespace fake_cuda

std::function<void()> FakeCudaDriver::Capture(devices::cuda::StreamHandle stream, const std::function<void()>& work) {
  using namespace fake_cuda;
  void* graph = nullptr;
  void* executable = nullptr;
  SORTITION_CHECK(FakeStreamBeginCapture(stream, 0) == kOk);
  work();
  const Result ended = FakeStreamEndCapture(stream, &graph);
  EXPECT_EQ(ended, kOk) << "a call has invalidated the graph";
  if (ended != kOk) return nullptr;
  SORTITION_CHECK(FakeGraphInstantiate(&executable, graph, 0) == kOk);
  FakeGraphDestroy(graph);
  return [stream, kept = std::shared_ptr<void>(executable, &FakeGraphExecDestroy)] {
    SORTITION_CHECK(FakeGraphLaunch(kept.get(), stream) == kOk);
  };
}

}  // namespace sortition::testing
