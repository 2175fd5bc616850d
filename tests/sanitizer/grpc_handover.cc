// Makes visible to ThreadSanitizer how gRPC hands work from thread to thread; linked into every binary of a
// thread-sanitizer build.
//
// gRPC passes an operation from the thread that starts it to the thread that takes its tag from the queue, and a slice
// from the thread that makes it to the one that drops it last, by atomics that an uninstrumented library does not show.
// The functions here stand in front of the library's, call the original and tell ThreadSanitizer of these edges alone.
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <sanitizer/tsan_interface.h>

#include <cstdint>

#include "tests/sanitizer/original.h"

namespace {

using sortition::sanitizer::Original;

// Tags need not be addresses. Small numbers have no shadow memory, and carry no data to another thread either.
bool IsAddress(const void* tag) { return reinterpret_cast<uintptr_t>(tag) >= 1 << 16; }

// Release function of a gRPC slice over foreign memory; called when the slice is not needed any more.
struct SliceRelease {
  void (*destroy)(void*);
  void* user_data;
};

void Release(void* argument) {
  __tsan_acquire(argument);
  auto* const release = static_cast<SliceRelease*>(argument);
  release->destroy(release->user_data);
  delete release;
}

}  // namespace

// Called once for every operation that will put `tag` into `queue`, before the operation starts. Internal to gRPC.
bool grpc_cq_begin_op(grpc_completion_queue* queue, void* tag);

bool grpc_cq_begin_op(grpc_completion_queue* queue, void* tag) {
  static auto* const original =
      Original<bool(grpc_completion_queue*, void*)>("_Z16grpc_cq_begin_opP21grpc_completion_queuePv");
  if (IsAddress(tag)) __tsan_release(tag);
  return original(queue, tag);
}

extern "C" grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static auto* const original =
      Original<grpc_event(grpc_completion_queue*, gpr_timespec, void*)>("grpc_completion_queue_next");
  const grpc_event event = original(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && IsAddress(event.tag)) __tsan_acquire(event.tag);
  return event;
}

extern "C" grpc_slice grpc_slice_new_with_user_data(void* bytes, size_t size, void (*destroy)(void*), void* user_data) {
  static auto* const original =
      Original<grpc_slice(void*, size_t, void (*)(void*), void*)>("grpc_slice_new_with_user_data");
  auto* const release = new SliceRelease{destroy, user_data};
  __tsan_release(release);
  return original(bytes, size, Release, release);
}
