// Uploads some of the masks of a worker's steps to the stream before the step, replaces them while steps that name them
// are under way, and releases them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "service/wire/frame.h"
#include "tests/simulation/draw.h"

namespace sortition::simulation {

// The uploaded masks of one stream. Not thread-safe.
class Uploads {
 public:
  // Encoded messages to send right before a step and right after it.
  struct Messages {
    std::vector<std::string> before;
    std::vector<std::string> after;
  };

  // If the message is a step, makes some of its rows name uploaded masks and keeps its other masks. The message has no
  // tensor in shared memory.
  Messages Rewrite(Draws draws, service::Frame* frame);

 private:
  std::map<uint64_t, uint32_t> held_;  // by id: the mask's only word
};

}  // namespace sortition::simulation
