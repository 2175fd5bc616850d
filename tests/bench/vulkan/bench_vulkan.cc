// Cost of sampling a batch on a Vulkan device, beside a plain max shader over the same bytes on the same device. Rows
// of bf16, 128,256 tokens, each different. Time on the device, uploads excluded.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/bench/logits.h"
#include "devices/vulkan/vulkan_device.h"
#include "kernels/check.h"
#include "tests/bench/suite.h"
#include "tests/bench/vulkan/max_pass.h"
#include "tests/support/run_batch.h"

ABSL_FLAG(uint32_t, device, 0, "Which Vulkan device, in the order of the loader");
ABSL_FLAG(uint32_t, rounds, 15, "Times that each batch runs");

namespace sortition::bench {
namespace {

using devices::BatchOutput;
using devices::DeviceRow;
using devices::VulkanDevice;
using devices::vulkan::Context;
using devices::vulkan::Instance;

constexpr uint32_t kVocabulary = 128'256;

struct Case {
  std::string name;
  law::SamplingParameters options;
  bool logprobs = false;
  Shape shape = Shape::kPeaked;
};

std::vector<Case> Cases() {
  const law::SamplingParameters usual = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f, .min_p = 0.02f};
  return {{"greedy", {.temperature = 0}},
          {"token", usual},
          {"token_ties", usual, false, Shape::kTies},
          {"temperature", {.temperature = 0.8f}},
          {"temperature_flat", {.temperature = 0.8f}, false, Shape::kFlat},
          {"logprobs", usual, true},
          {"top_p_unbounded", {.top_p = 0.95f}}};
}

kernels::RowParameters ParametersOf(const Case& what) {
  kernels::RowParameters parameters;
  law::Compile(what.options, &parameters);
  parameters.raw_logprob = what.logprobs;
  parameters.raw_top = what.logprobs ? 5 : 0;
  return parameters;
}

double Sample(VulkanDevice* device, const Logits& logits, const kernels::RowParameters& parameters,
              uint32_t* position) {
  std::vector<DeviceRow> rows(logits.count());
  for (size_t row = 0; row < rows.size(); ++row) {
    rows[row].request.dtype = logits.dtype();
    rows[row].request.live_vocabulary = kVocabulary;
    rows[row].request.parameters = &parameters;
    rows[row].request.noise = {99, (*position)++, 0};
    rows[row].segments.push_back({logits.row(row), logits.row_bytes()});
  }
  const BatchOutput result = testing::RunBatch(device, std::move(rows));
  SORTITION_CHECK(result.status.ok());
  return double(result.kernel_nanoseconds) / 1e3;
}

void Measure(const Case& what, size_t batch, VulkanDevice* device, const std::shared_ptr<Context>& context,
             Report* report) {
  const std::string name = absl::StrCat(what.name, "_", batch);
  std::cerr << name << "\n";
  const Logits logits(what.shape, kernels::DType::kBF16, batch, kVocabulary);
  const kernels::RowParameters parameters = ParametersOf(what);
  MaxPass max_pass(context, logits);
  uint32_t position = 0;
  std::vector<double> baseline;
  std::vector<double> sampled;
  for (uint32_t round = 0; round <= absl::GetFlag(FLAGS_rounds); ++round) {
    const double read = double(max_pass.Run()) / 1e3;
    const double token = Sample(device, logits, parameters, &position);
    if (round == 0) continue;  // drivers compile with the first
    baseline.push_back(read);
    sampled.push_back(token);
  }
  report->Add({name, Percentile(sampled, 50), "us", Percentile(baseline, 50)});
}

int Run() {
  const auto instance = Instance::Create();
  if (!instance.ok() || absl::GetFlag(FLAGS_device) >= (*instance)->hardware().size()) {
    std::cerr << "bench_vulkan: skipped: " << (instance.ok() ? "no such device" : instance.status().message()) << "\n";
    return 1;
  }
  const devices::vulkan::Hardware& hardware = (*instance)->hardware()[absl::GetFlag(FLAGS_device)];
  const auto device = VulkanDevice::Start(*instance, hardware, {});
  const auto context = Context::Create(*instance, hardware, {.workgroups = devices::vulkan::Workgroups::For(hardware)});
  SORTITION_CHECK(device.ok() && context.ok());
  Report report("vulkan", absl::StrCat(hardware.name, " on ", MachineName()));
  for (const Case& what : Cases()) {
    for (const size_t batch : {size_t{1}, size_t{16}, size_t{64}}) {
      if (batch != 64 && what.name != "token") continue;
      Measure(what, batch, device->get(), *context, &report);
      Save(report);
    }
  }
  return Publish(report);
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Run();
}
