// What the demo writes: for each story how it begins and how its tokens are chosen.
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

// `count` stories, at least one; after the first eight the same kinds come again with other seeds. `vocabulary` finds
// the tokens that a story favours.
std::vector<Story> MakeStories(uint32_t count, const BytePair& vocabulary);

// The parameters that are set, for people: "temperature 0.8, top-p 0.9".
std::string DescribeParameters(const v1::SamplingParameters& parameters);

}  // namespace sortition::demo
