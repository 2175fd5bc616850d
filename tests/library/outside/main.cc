// Samples a row on the CPU, and finds the GPU if there is one.
#include <sortition/sampler.h>

#include <cstdio>
#include <memory>
#include <vector>

int main() {
  sortition::RowOptions options;
  options.parameters.temperature = 0.8f;
  options.parameters.top_k = 20;
  options.processed_logprob = true;
  sortition::kernels::RowParameters parameters;
  if (const sortition::Status status = sortition::Compile(options, &parameters); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message.c_str());
    return 1;
  }
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i % 37);
  sortition::kernels::RowRequest request;
  request.logits = logits.data();
  request.live_vocabulary = uint32_t(logits.size());
  request.parameters = &parameters;
  request.noise = {.seed = 7, .position = 3};
  sortition::CpuSampler sampler;
  sortition::kernels::RowOutput answer;
  if (!sampler.Sample(request, &answer).ok() || answer.error != sortition::kernels::RowError::kNone) return 1;
  const float logprob = sortition::Logprob(answer.processed, answer.processed.chosen.bits, parameters.temperature);
  std::printf("token %u logprob %.9g\n", answer.token, double(logprob));

  std::unique_ptr<sortition::CudaSampler> cuda;
  const sortition::Status found = sortition::CudaSampler::Create(0, {}, &cuda);
  std::printf("cuda: %s\n", found.ok() ? "found" : found.message.c_str());
  return 0;
}
