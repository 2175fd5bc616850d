// Masks of a worker: some of those that come with a step are uploaded to the stream before it, replaced by others while
// steps that name them are under way, and released again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "service/request/frame.h"
#include "tests/simulation/draw.h"

namespace sortition::simulation {

// Those of one stream. Not thread-safe.
class Uploads {
 public:
  // Messages, encoded, that go right before a step and right after it.
  struct Messages {
    std::vector<std::string> before;
    std::vector<std::string> after;
  };

  // If the message is a step, makes some of its rows name uploaded masks and keeps its other masks. No tensor of the
  // message lies in shared memory.
  Messages Rewrite(Draws draws, service::Frame* frame);

 private:
  std::map<uint64_t, uint32_t> held_;  // the mask's word by its id; words are all there is in this vocabulary
};

}  // namespace sortition::simulation
