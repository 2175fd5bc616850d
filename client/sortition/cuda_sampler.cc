// The driver of this machine, and the library's face.
#include "absl/strings/str_cat.h"
#include "client/sortition/convert.h"
#include "client/sortition/cuda_state.h"
#include "kernels/cuda/image.h"

namespace sortition {

Status CudaSampler::Create(int device, const CudaLimits& limits, std::unique_ptr<CudaSampler>* sampler) {
  const auto api = devices::cuda::Api::Load();
  if (!api.ok()) return ToPublic(api.status());
  const auto hardware = devices::cuda::FindHardware(*api);
  if (!hardware.ok()) return ToPublic(hardware.status());
  for (const devices::cuda::Hardware& one : *hardware) {
    if (int(one.index) != device) continue;
    auto context = devices::cuda::Context::Create(*api, one, kernels::cuda::CompiledImages());
    if (!context.ok()) return ToPublic(context.status());
    auto state = State::Create(*std::move(context), limits);
    if (!state.ok()) return ToPublic(state.status());
    *sampler = std::make_unique<CudaSampler>(*std::move(state));
    return {};
  }
  return {StatusCode::kNotFound, absl::StrCat("no CUDA device ", device, " of compute capability 8.0 or later")};
}

CudaSampler::CudaSampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaSampler::~CudaSampler() = default;

Status CudaSampler::Bind(const CudaBatch& batch) { return ToPublic(state_->Bind(batch)); }
Status CudaSampler::SetRow(uint32_t row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise) {
  return ToPublic(state_->SetRow(row, parameters, noise));
}
Status CudaSampler::SetSamplerState(uint32_t row, uint64_t state) {
  return ToPublic(state_->SetSamplerState(row, state));
}
Status CudaSampler::SetPatches(uint32_t row, std::span<const kernels::TokenPatch> patches) {
  return ToPublic(state_->SetPatches(row, patches));
}
Status CudaSampler::Upload(CUstream_st* stream) { return ToPublic(state_->Upload(stream)); }
Status CudaSampler::Sample(CUstream_st* stream) { return ToPublic(state_->Sample(stream)); }
Status CudaSampler::Download(CUstream_st* stream, std::span<kernels::RowAnswer> answers) {
  return ToPublic(state_->Download(stream, answers));
}

}  // namespace sortition
