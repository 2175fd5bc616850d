// The words of options in the history hash: for each option that is on its field number in SamplingParameters, then
// its values.
#include "service/sequence/history_options.h"

namespace sortition::service {
namespace {

enum Field : uint64_t {
  kPenaltyScope = 8,
};

}  // namespace

std::vector<uint64_t> HistoryOptions::Words() const {
  std::vector<uint64_t> words;
  if (scope != PenaltyScope()) {
    const uint64_t flags = uint64_t{scope.repetition_counts_prompt} | uint64_t{scope.frequency_counts_prompt} << 1;
    for (const uint64_t word :
         {uint64_t{kPenaltyScope}, uint64_t{scope.window}, flags, uint64_t{scope.ignored_prefix}}) {
      words.push_back(word);
    }
  }
  return words;
}

}  // namespace sortition::service
