// A function with a separate stack, which runs in turns with the caller that resumes it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace sortition::testing::emulator {

// Not thread-safe. Destroying a suspended fiber does not unwind its stack.
class Fiber {
 public:
  // `run` is called at the first Resume, and again at the first one after it has returned.
  explicit Fiber(std::function<void()> run);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the fiber until it suspends itself or returns.
  void Resume();
  // Called from within: returns to the caller of Resume.
  void Suspend();

 private:
  static void Begin();
  void Enter();

  struct Context;
  const std::function<void()> run_;
  const std::unique_ptr<Context> context_;
};

}  // namespace sortition::testing::emulator
