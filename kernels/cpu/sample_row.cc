// A row's way: read, change, filter, draw, describe.
#include "kernels/cpu/sample_row.h"

#include "kernels/check_row.h"
#include "kernels/cpu/change_row.h"
#include "kernels/cpu/describe.h"
#include "kernels/cpu/draw.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/read_row.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/select.h"

namespace sortition::kernels::cpu {
namespace {

// The token as the unchanged row has it: the same id, its own key.
Candidate Unchanged(const Row& raw, uint32_t token) {
  GroupKeys keys;
  LoadKeys(raw, token / law::kGroupSize, &keys);
  return {keys[token % law::kGroupSize], token};
}

}  // namespace

void SampleRow(const RowRequest& request, Scratch* scratch, RowAnswer* answer) {
  CheckRow(request);
  const RowParameters& parameters = *request.parameters;
  *answer = RowAnswer();

  Row raw;
  Row row;
  if (!ReadRow(request, scratch, &raw, answer) || !ChangeRow(raw, scratch, &row, answer)) return;
  if (row.max_key == 0) {
    answer->error = RowError::kNoLiveToken;
    return;
  }

  Candidate chosen;
  if (parameters.greedy) {
    chosen = First(row);
    if (parameters.processed_logprob) {
      answer->processed = PointMass(chosen, parameters.processed_top);
      answer->kept = 1;
    }
  } else {
    const law::Scale scale = law::ScaleAt(parameters, law::KeyBits(row.max_key));
    const Cut cut = Filter(row, scale, scratch);
    chosen = Draw(row, scale, cut, law::KeyOf(request.noise), scratch);
    if (parameters.processed_logprob) {
      answer->processed = Describe(row, scale, cut, chosen, parameters.processed_top, scratch, &answer->kept);
    }
  }
  answer->token = chosen.token;
  if (parameters.raw_logprob) {
    uint32_t live;
    answer->raw = Describe(raw, law::UnitScale(law::KeyBits(raw.max_key)), Cut(), Unchanged(raw, chosen.token),
                           parameters.raw_top, scratch, &live);
  }
}

}  // namespace sortition::kernels::cpu
