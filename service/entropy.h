// The service's source of randomness, injected so that a simulation can be repeated.
#pragma once

#include <cstdint>

namespace sortition::service {

// Thread-safe.
class Entropy {
 public:
  virtual ~Entropy() = default;
  // Returns a uniform, unpredictable word.
  virtual uint64_t Draw() = 0;
};

// The operating system's secure generator.
class SystemEntropy : public Entropy {
 public:
  uint64_t Draw() override;
};

}  // namespace sortition::service
