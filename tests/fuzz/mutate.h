// Mutations of inputs, blind to their effect.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace sortition::fuzz {

// Changes `*input` in one to eight places: bytes flipped, set to edges, put in, taken out, doubled, or taken over from
// `other`. At most `most` bytes come out. A pure function of its arguments.
void Mutate(std::vector<uint8_t>* input, const std::vector<uint8_t>& other, size_t most, std::mt19937_64* random);

}  // namespace sortition::fuzz
