// Samples with the CPU's kernel.
#include "absl/strings/str_cat.h"
#include "client/sortition/convert.h"
#include "client/sortition/sampler.h"
#include "kernels/cpu/sample_row.h"

namespace sortition {
namespace {

// Checks the preconditions of kernels/row.h that this library's callers can violate. The kernel asserts them.
Status CheckRequest(const kernels::RowRequest& request) {
  if (request.logits == nullptr || request.parameters == nullptr) return InvalidArgument("logits or parameters: null");
  if (request.live_vocabulary == 0 || request.live_vocabulary > kernels::kMaxVocabulary) {
    return InvalidArgument(
        absl::StrCat("live_vocabulary is ", request.live_vocabulary, ", not in [1, ", kernels::kMaxVocabulary, "]"));
  }
  for (size_t i = 0; i < request.edits.size(); ++i) {
    const bool is_sorted = i == 0 || request.edits[i - 1].token < request.edits[i].token;
    if (!is_sorted || request.edits[i].token >= request.live_vocabulary) {
      return InvalidArgument(absl::StrCat("edits[", i, "]: not sorted by token, or not of the vocabulary"));
    }
  }
  for (size_t i = 0; i < request.allowed_tokens.size(); ++i) {
    const bool is_sorted = i == 0 || request.allowed_tokens[i - 1] < request.allowed_tokens[i];
    if (!is_sorted || request.allowed_tokens[i] >= request.live_vocabulary) {
      return InvalidArgument(absl::StrCat("allowed_tokens[", i, "]: not sorted, or not of the vocabulary"));
    }
  }
  if (request.task != kernels::RowTask::kDraw || !request.requested.empty() || request.wants_race_place) {
    return InvalidArgument("task, requested, wants_race_place: this library draws tokens");
  }
  return {};
}

}  // namespace

struct CpuSampler::Memory {
  kernels::cpu::Scratch scratch;
};

CpuSampler::CpuSampler() : memory_(std::make_unique<Memory>()) {}
CpuSampler::~CpuSampler() = default;

Status CpuSampler::Sample(const kernels::RowRequest& request, kernels::RowOutput* output) {
  if (const Status status = CheckRequest(request); !status.ok()) return status;
  kernels::cpu::SampleRow(request, &memory_->scratch, output);
  return {};
}

}  // namespace sortition
