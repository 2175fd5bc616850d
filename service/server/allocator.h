// The memory allocator's settings for traffic in megabyte messages.
#pragma once

namespace sortition::server {

// Keeps freed message buffers in the process. By default glibc hands the pages of every freed message back to the
// kernel and faults them in again for the next one, which halves the throughput of 1 MB messages. Without effect on
// other C libraries. Call once, before other threads run.
void TuneAllocator();

}  // namespace sortition::server
