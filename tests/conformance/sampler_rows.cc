// Batches as an engine makes them: rows of one type and size, at equal distances.
#include "tests/conformance/sampler_rows.h"

#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/sortition/sampler.h"
#include "devices/cuda/context.h"
#include "kernels/law/reference.h"
#include "tests/conformance/on_device.h"
#include "tests/conformance/random_row.h"

namespace sortition {
namespace {

using devices::cuda::Api;
using kernels::RandomRow;

constexpr kernels::DType kDType = kernels::DType::kBF16;
constexpr int kLaunches = 2;  // samplers with a state continue from the first

bool IsGood(bool good, absl::string_view what, absl::string_view why) {
  if (!good) std::cerr << "sampler: " << what << ": " << why << "\n";
  return good;
}
bool IsGood(const absl::Status& status, absl::string_view what) { return IsGood(status.ok(), what, status.message()); }
bool IsGood(const Status& status, absl::string_view what) { return IsGood(status.ok(), what, status.message); }

// Makes the random rows that a batch of the library's can have.
std::vector<std::unique_ptr<RandomRow>> MakeRows(uint64_t seed, uint32_t vocabulary, uint32_t count) {
  std::vector<std::unique_ptr<RandomRow>> rows;
  for (uint64_t i = 0; rows.size() < count; ++i) {
    const auto options = rows.size() % 2 == 1 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain;
    auto row = std::make_unique<RandomRow>(seed * 1'000'000 + vocabulary + i, vocabulary, options);
    const kernels::RowRequest& request = row->request();
    if (request.dtype == kDType && request.live_vocabulary == vocabulary && !request.has_allowed_tokens &&
        request.allowed_bits == nullptr) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

bool AreRight(const std::vector<std::unique_ptr<RandomRow>>& rows, const std::vector<kernels::RowOutput>& answers,
              std::vector<uint64_t>* states) {
  bool is_right = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    kernels::RowRequest request = rows[i]->request();
    request.sampler_state = (*states)[i];
    const kernels::RowOutput expected = law::SampleRowReference(request);
    if (expected.error == kernels::RowFault::kNone) (*states)[i] = expected.sampler_state;
    is_right = IsGood(answers[i] == expected, "wrong", rows[i]->description()) && is_right;
  }
  return is_right;
}

bool TestBatch(const Api& api, const devices::cuda::Hardware& hardware,
               const std::vector<std::unique_ptr<RandomRow>>& rows) {
  const uint32_t vocabulary = rows.front()->request().live_vocabulary;
  const auto count = uint32_t(rows.size());
  CudaBatch batch = {
      .row_bytes = (2 * uint64_t{vocabulary} + 15) / 16 * 16, .dtype = kDType, .rows = count, .vocabulary = vocabulary};
  OnDevice memory(api, hardware);
  if (!IsGood(memory.Open((batch.row_bytes + 4) * count), "memory")) return false;
  batch.logits = memory.at(0);
  batch.tokens = static_cast<int32_t*>(memory.at(batch.row_bytes * count));
  std::unique_ptr<CudaSampler> sampler;
  const CudaLimits limits = {
      .rows = count, .vocabulary = vocabulary, .edits = vocabulary, .top = kernels::kMaxTopLogprobs, .kept = 0};
  if (!IsGood(CudaSampler::Create(int(hardware.index), limits, &sampler), "Create")) return false;
  if (!IsGood(sampler->Bind(batch), "Bind")) return false;
  std::vector<uint64_t> states;
  for (uint32_t i = 0; i < count; ++i) {
    const kernels::RowRequest& request = rows[i]->request();
    if (!IsGood(memory.Upload(batch.row_bytes * i, rows[i]->tensor()), "logits")) return false;
    if (!IsGood(sampler->SetRow(i, *request.parameters, request.noise), "SetRow")) return false;
    if (!IsGood(sampler->SetSamplerState(i, request.sampler_state), "SetSamplerState")) return false;
    if (!IsGood(sampler->SetEdits(i, request.edits), "SetEdits")) return false;
    states.push_back(request.sampler_state);
  }
  if (!IsGood(sampler->Upload(memory.stream()), "Upload")) return false;
  for (int launch = 0; launch < kLaunches; ++launch) {
    std::vector<kernels::RowOutput> answers(count);
    if (!IsGood(sampler->Sample(memory.stream()), "Sample")) return false;
    if (!IsGood(sampler->Download(memory.stream(), answers), "Download")) return false;
    if (!AreRight(rows, answers, &states)) return false;
  }
  return true;
}

}  // namespace

bool TestSampler(const devices::cuda::Hardware& hardware, uint64_t seed, uint64_t* rows) {
  const auto api = Api::Load();
  if (!IsGood(api.status(), "driver")) return false;
  const struct {
    uint32_t vocabulary;
    uint32_t count;
  } parts[] = {{300, 64}, {12'000, 16}, {128'256, 4}};
  bool is_right = true;
  for (const auto& [vocabulary, count] : parts) {
    *rows += kLaunches * count;
    is_right = TestBatch(*api, hardware, MakeRows(seed, vocabulary, count)) && is_right;
  }
  return is_right;
}

}  // namespace sortition
