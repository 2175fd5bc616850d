// Rows that streams under load sample, and their right tokens. Rows have no history, so any may be left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/bench/logits.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

// Rows that take a CPU kernel long for their bytes: top-p without top-k over flat logits. Immutable once made, so
// shared by threads.
class LoadText {
 public:
  static constexpr uint32_t kVocabulary = 4096;
  static constexpr uint32_t kSequences = 16;  // the most rows of a step
  static constexpr uint32_t kPositions = 16;  // length of a text; then it begins anew

  LoadText();

  v1::StreamRequest MakeOpen(uint32_t sequence) const;
  // Step `number` of the sequences 0 to `rows` - 1; its batch_id is the number.
  v1::StreamRequest MakeStep(uint64_t number, uint32_t rows) const;
  // Returns the token by the plain reference of the law.
  uint32_t TokenOf(uint64_t number, uint32_t sequence) const { return tokens_[sequence][number % kPositions]; }

 private:
  bench::Logits logits_;
  std::vector<std::vector<uint32_t>> tokens_;  // by sequence and position
};

}  // namespace sortition::testing
