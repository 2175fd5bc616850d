// The replacement of a group that has changed.
#include "kernels/cpu/lazy_copy.h"

#include <cstring>

#include "kernels/cpu/row_view.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {

void ReplaceChanged(DType dtype, uint32_t key, std::byte* elements, LazyCopy* lazy) {
  lazy->has_failed = true;
  const size_t bytes = ElementBytes(dtype);
  const uint32_t masked = MinusInfinity(dtype);
  for (size_t i = 0; i < law::kGroupSize; ++i) std::memcpy(elements + i * bytes, &masked, bytes);
  if (key == 0) return;
  const uint32_t largest = law::Narrow(dtype, law::KeyBits(key));
  std::memcpy(elements, &largest, bytes);
}

}  // namespace sortition::kernels::cpu
