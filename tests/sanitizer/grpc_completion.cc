// Makes gRPC's completion queues visible to ThreadSanitizer; linked into every binary of a thread-sanitizer build.
//
// gRPC hands an operation from the thread that starts it to the thread that takes its tag from the queue by atomics
// that an uninstrumented library does not show. The two functions here stand in front of the library's, call the
// original and tell ThreadSanitizer of that edge, and of no other.
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <cstdint>

#include "tests/sanitizer/original.h"

namespace {

using sortition::sanitizer::Original;

// Tags need not be addresses. Small numbers have no shadow memory, and carry no data to another thread either.
bool IsAddress(const void* tag) { return reinterpret_cast<uintptr_t>(tag) >= 1 << 16; }

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
