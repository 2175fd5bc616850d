// glibc's malloc thresholds.
#include "service/server/allocator.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace sortition::server {

void TuneAllocator() {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace sortition::server
