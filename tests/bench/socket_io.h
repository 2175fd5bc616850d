// Whole runs of bytes over a blocking socket.
#pragma once

#include <cstddef>

namespace sortition::bench {

// Thread-safe for distinct sockets. False if the other end is gone.
bool ReadAll(int socket, void* to, size_t bytes);
bool WriteAll(int socket, const void* from, size_t bytes);

}  // namespace sortition::bench
