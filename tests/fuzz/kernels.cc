// Kernels: a row of the input's bytes, on every instruction set that this machine runs, against the reference.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/reference.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/row.h"

namespace sortition::fuzz {
namespace {

// Planted defect: orders two equal logits that stand side by side by the higher id.
void Plant(const kernels::RowRequest& request, kernels::RowOutput* answer) {
  if (!request.parameters->greedy || answer->token + 1 >= request.live_vocabulary) return;
  const uint32_t bytes = kernels::ElementBytes(request.dtype);
  const auto* logit = static_cast<const char*>(request.logits) + size_t{answer->token} * bytes;
  if (std::memcmp(logit, logit + bytes, bytes) == 0) ++answer->token;
}

}  // namespace

void Run(Bytes bytes) {
  static kernels::cpu::Scratch& scratch = *new kernels::cpu::Scratch;
  Input input(bytes);
  const Row row(&input);
  const kernels::RowOutput expected = law::SampleRowReference(row.request());
  for (const kernels::cpu::Target* target : kernels::cpu::RunnableTargets()) {
    kernels::RowOutput answer;
    kernels::cpu::SampleRow(*target, row.request(), &scratch, &answer);
    if (planted) Plant(row.request(), &answer);
    if (answer != expected) {
      Fail(
          absl::StrCat(std::string(target->name), " answers token ", answer.token, ", the reference ", expected.token));
    }
  }
}

}  // namespace sortition::fuzz
