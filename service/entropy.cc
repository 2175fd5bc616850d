// Randomness from the kernel.
#include "service/entropy.h"

#include <unistd.h>

#include "kernels/check.h"

namespace sortition::service {

uint64_t SystemEntropy::Draw() {
  uint64_t word;
  SORTITION_CHECK(getentropy(&word, sizeof(word)) == 0);
  return word;
}

}  // namespace sortition::service
