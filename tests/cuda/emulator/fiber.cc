// Switching of stacks: by hand on x86-64, where it takes some nanoseconds, elsewhere by the C library.
#include "tests/cuda/emulator/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace sortition::testing::emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;

Fiber* entering = nullptr;

}  // namespace

#if defined(__x86_64__)

// Saves the callee's registers on the present stack, stores that stack in `from`, and continues on the stack `to`.
extern "C" void SortitionSwitchStack(void** from, void* to);
asm(R"(
.text
.globl SortitionSwitchStack
.type SortitionSwitchStack, @function
SortitionSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size SortitionSwitchStack, . - SortitionSwitchStack
)");

struct Stacks {
  void* resumer = nullptr;
  void* fiber = nullptr;

  void Open(std::byte* stack, void (*begin)()) {
    // As SortitionSwitchStack leaves it: six registers, then the return address; a function begins 8 off a multiple of
    // 16.
    auto** top = reinterpret_cast<void**>(stack + kStackBytes) - 2;
    *top = reinterpret_cast<void*>(begin);
    std::memset(static_cast<void*>(top - 6), 0, 6 * sizeof(void*));
    fiber = top - 6;
  }
  void ToFiber() { SortitionSwitchStack(&resumer, fiber); }
  void ToResumer() { SortitionSwitchStack(&fiber, resumer); }
};

#else

struct Stacks {
  ucontext_t resumer;
  ucontext_t fiber;

  void Open(std::byte* stack, void (*begin)()) {
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = stack;
    fiber.uc_stack.ss_size = kStackBytes;
    fiber.uc_link = nullptr;
    makecontext(&fiber, begin, 0);
  }
  void ToFiber() { swapcontext(&resumer, &fiber); }
  void ToResumer() { swapcontext(&fiber, &resumer); }
};

#endif

struct Fiber::Context {
  std::byte* stack = nullptr;
  Stacks stacks;
  // The address sanitizer's: its own record of each stack.
  void* resumer_frames = nullptr;
  void* fiber_frames = nullptr;
  const void* resumer_stack = nullptr;
  size_t resumer_bytes = 0;
};

Fiber::Fiber(std::function<void()> run) : run_(std::move(run)), context_(std::make_unique<Context>()) {
  void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SORTITION_CHECK(stack != MAP_FAILED);
  context_->stack = static_cast<std::byte*>(stack);
  context_->stacks.Open(context_->stack, &Begin);
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  // The sanitizer's record of a stack, which may be eleven times as large, goes when that stack is left for ever: so it
  // is told, in the stack's stead, that the stack is entered and left.
  void* frames = nullptr;
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_start_switch_fiber(&frames, context_->stack, kStackBytes);
  __sanitizer_finish_switch_fiber(context_->fiber_frames, &stack, &bytes);
  __sanitizer_start_switch_fiber(nullptr, stack, bytes);
  __sanitizer_finish_switch_fiber(frames, nullptr, nullptr);
#endif
  munmap(context_->stack, kStackBytes);
}

void Fiber::Begin() { entering->Enter(); }

void Fiber::Enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &context_->resumer_stack, &context_->resumer_bytes);
#endif
  for (;;) {
    run_();
    Suspend();
  }
}

void Fiber::Resume() {
  entering = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&context_->resumer_frames, context_->stack, kStackBytes);
#endif
  context_->stacks.ToFiber();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context_->resumer_frames, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&context_->fiber_frames, context_->resumer_stack, context_->resumer_bytes);
#endif
  context_->stacks.ToResumer();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context_->fiber_frames, &context_->resumer_stack, &context_->resumer_bytes);
#endif
}

}  // namespace sortition::testing::emulator
