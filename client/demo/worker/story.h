// The stories of the demo: the prompt and the sampling parameters of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/demo/byte_pair.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::demo {

struct Story {
  std::string name;
  std::string prompt;
  v1::SamplingParameters parameters;
  uint64_t seed = 0;
  uint32_t choice_index = 0;
};

// Returns `count` stories, at least one. After the first eight the same kinds repeat with other seeds. `vocabulary`
// finds the tokens that a story favours.
std::vector<Story> MakeStories(uint32_t count, const BytePair& vocabulary);

// Describes the parameters that are set: "temperature 0.8, top-p 0.9".
std::string DescribeParameters(const v1::SamplingParameters& parameters);

}  // namespace sortition::demo
