// A function with a stack of its own, which runs in turns with whoever resumes it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace sortition::testing::emulator {

// Not thread-safe. Destroyed while it is suspended, it leaves what is on its stack as it is.
class Fiber {
 public:
  // `run` is called at the first Resume, and again at the first one after it has returned.
  explicit Fiber(std::function<void()> run);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on in the fiber until it suspends itself or returns.
  void Resume();
  // From within: back to whoever has resumed it.
  void Suspend();

 private:
  static void Begin();
  void Enter();

  struct Context;
  const std::function<void()> run_;
  const std::unique_ptr<Context> context_;
};

}  // namespace sortition::testing::emulator
