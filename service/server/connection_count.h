// How many of the connections that were handed on are open still. Who has them, gRPC for the most part, tells nobody
// when it closes one.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace sortition::server {

// Not thread-safe.
class ConnectionCount {
 public:
  // `most` 0 = any number.
  explicit ConnectionCount(uint32_t most) : most_(most) {}

  uint32_t most() const { return most_; }

  // Whether there may be one more; counts `socket`, which stays open until its owner closes it, if there may. Looks at
  // all that are counted where there seem to be too many.
  bool Admit(int socket);

 private:
  const uint32_t most_;
  absl::flat_hash_map<int, ino_t> open_;  // by descriptor: a closed one's number is used again, its inode's is not
};

}  // namespace sortition::server
