// Compiles options, and finds the GPU if there is one.
#include <sortition/sampler.h>

#include <cstdio>
#include <memory>

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
  // Two tokens of equal logits have half of the weight each.
  sortition::kernels::Distribution halves;
  halves.weight_sum = uint64_t{2} << 44;
  const double temperature = sortition::ProcessedTemperature(parameters, {});
  std::printf("logprob %.4f at temperature %.1f\n", double(sortition::Logprob(halves, 0, temperature)), temperature);

  std::unique_ptr<sortition::CudaSampler> cuda;
  const sortition::Status found = sortition::CudaSampler::Create(0, {}, &cuda);
  std::printf("cuda: %s\n", found.ok() ? "found" : found.message.c_str());
  return 0;
}
