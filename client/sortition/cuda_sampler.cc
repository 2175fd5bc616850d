// Implements CudaSampler by its State, with the machine's driver.
#include "client/sortition/convert.h"
#include "client/sortition/cuda_state.h"

namespace sortition {

Status CudaSampler::Create(int device, const CudaLimits& limits, std::unique_ptr<CudaSampler>* sampler) {
  auto context = devices::cuda::Context::OfDevice(device);
  if (!context.ok()) return ToPublic(context.status());
  auto state = State::Create(*std::move(context), limits);
  if (!state.ok()) return ToPublic(state.status());
  *sampler = std::make_unique<CudaSampler>(*std::move(state));
  return {};
}

CudaSampler::CudaSampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaSampler::~CudaSampler() = default;

Status CudaSampler::Bind(const CudaBatch& batch, std::span<const uint32_t> rows) {
  return ToPublic(state_->Bind(batch, rows));
}
Status CudaSampler::SetRow(uint32_t row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise) {
  return ToPublic(state_->SetRow(row, parameters, noise));
}
Status CudaSampler::SetTask(uint32_t row, kernels::RowTask task) { return ToPublic(state_->SetTask(row, task)); }
Status CudaSampler::SetSamplerState(uint32_t row, uint64_t state) {
  return ToPublic(state_->SetSamplerState(row, state));
}
Status CudaSampler::SetEdits(uint32_t row, std::span<const kernels::LogitEdit> edits) {
  return ToPublic(state_->SetEdits(row, edits));
}
Status CudaSampler::SetSequence(uint32_t row, const law::SamplingParameters& parameters,
                                std::span<const TokenCount> counts) {
  return ToPublic(state_->SetSequence(row, parameters, counts));
}
Status CudaSampler::Upload(CUstream_st* stream) { return ToPublic(state_->Upload(stream)); }
Status CudaSampler::Sample(CUstream_st* stream) { return ToPublic(state_->Sample(stream)); }
Status CudaSampler::Fetch(CUstream_st* stream, CudaTicket* ticket) { return ToPublic(state_->Fetch(stream, ticket)); }
Status CudaSampler::Await(CudaTicket ticket, std::vector<kernels::RowOutput>* outputs) {
  return ToPublic(state_->Await(ticket, outputs));
}
Status CudaSampler::Download(CUstream_st* stream, std::span<kernels::RowOutput> outputs) {
  return ToPublic(state_->Download(stream, outputs));
}

}  // namespace sortition
