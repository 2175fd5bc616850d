// A CudaDevice and a CudaSampler over the same memory, by turns.
#include "tests/bench/cuda/shared_rows.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/bench/logits.h"
#include "client/cpp/cuda/cuda_rows.h"
#include "client/sortition/cuda_state.h"
#include "devices/cuda/cuda_device.h"
#include "kernels/check.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "tests/bench/suite.h"
#include "tests/support/run_batch.h"

namespace sortition::bench {
namespace {

using devices::DeviceRow;
using devices::cuda::Context;
using devices::cuda::CurrentContext;

constexpr uint32_t kMemory = devices::kHostMemory + 1;
constexpr uint32_t kVocabulary = 128'256;
constexpr uint64_t kImported = 64 << 20;
constexpr uint64_t kMostBytes = 320 << 20;

void CheckSuccess(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "bench_cuda: shared rows: " << status.message() << "\n";
  std::exit(1);
}

// Penalties on 2,000 tokens of every row; each step counts one of these tokens once more.
class Penalties {
 public:
  explicit Penalties(uint32_t rows) : edits_(rows) {
    for (std::vector<kernels::LogitEdit>& edits : edits_) {
      for (uint32_t i = 0; i < kEdits; ++i) edits.push_back(EditOf(i * (kVocabulary / kEdits)));
    }
  }

  void Step() {
    const auto at = size_t(++version_ * 77 % kEdits);
    for (std::vector<kernels::LogitEdit>& edits : edits_) edits[at] = EditOf(edits[at].token);
  }

  void PutInto(uint32_t row, kernels::RowRequest* request) const { request->edits = edits_[row]; }

 private:
  static constexpr uint32_t kEdits = 2000;

  kernels::LogitEdit EditOf(uint32_t token) const {
    return {.token = token, .penalty = law::PenaltyBits(0.1f, 0.2f, uint32_t(1 + (token + version_) % 9))};
  }

  std::vector<std::vector<kernels::LogitEdit>> edits_;
  uint64_t version_ = 0;
};

// One batch after another of `rows` rows, in a worker's memory, a server's device and a library's sampler.
class SharedRows {
 public:
  SharedRows(std::shared_ptr<Context> context, devices::Device* device, uint32_t rows)
      : context_(std::move(context)),
        device_(device),
        rows_(rows),
        logits_(Shape::kPeaked, kernels::DType::kBF16, 16, kVocabulary),
        inputs_(std::clamp<uint64_t>(kMostBytes / (rows * logits_.row_bytes()), 2, 32)) {
    const auto& api = context_->api();
    const CurrentContext current(*context_);
    CheckSuccess(current.status());
    auto memory =
        client::CudaRows::CreateOn(api, context_->hardware(), uint64_t{inputs_} * rows_ * logits_.row_bytes());
    CheckSuccess(memory.status());
    memory_ = *std::move(memory);
    auto imported = device_->Import(memory_->handle());
    CheckSuccess(imported.status());
    imported_ = *std::move(imported);
    CheckSuccess(ToStatus(api, api.StreamCreate(&stream_, devices::cuda::kStreamNonBlocking), "cuStreamCreate"));
    CheckSuccess(ToStatus(api, api.MemAlloc(&tokens_, 4 * rows_), "cuMemAlloc"));
    CheckSuccess(ToStatus(api, Fill(), "cuMemcpyHtoDAsync"));
    for (uint32_t input = 0; input < inputs_; ++input) samplers_.push_back(MakeSampler(input));
  }
  ~SharedRows() {
    const CurrentContext current(*context_);
    samplers_.clear();
    context_->api().MemFree(tokens_);
    context_->api().StreamDestroy(stream_);
  }
  SharedRows(const SharedRows&) = delete;
  SharedRows& operator=(const SharedRows&) = delete;

  uint32_t inputs() const { return inputs_; }

  std::vector<kernels::RowOutput> Library(size_t input) {
    const CurrentContext current(*context_);
    std::vector<kernels::RowOutput> answers(rows_);
    CheckSuccess(samplers_[input]->Sample(stream_));
    CheckSuccess(samplers_[input]->Download(stream_, answers));
    return answers;
  }

  std::vector<kernels::RowOutput> OnDevice(size_t input, bool on_host, bool may_change,
                                           const Penalties* penalties = nullptr) {
    std::vector<DeviceRow> batch(rows_);
    for (uint32_t row = 0; row < rows_; ++row) {
      batch[row].request = MakeRequest(input, row, penalties);
      if (on_host) {
        batch[row].segments.push_back({logits_.row(SourceOf(input, row)), logits_.row_bytes()});
      } else {
        batch[row].segments.push_back({imported_->bytes().data() + OffsetOf(input, row), logits_.row_bytes()});
        batch[row].memory = kMemory;
        batch[row].imported = imported_.get();
        batch[row].may_change = may_change;
      }
    }
    devices::BatchOutput result = testing::RunBatch(device_, std::move(batch));
    CheckSuccess(result.status);
    return std::move(result.outputs);
  }

  void CheckAnswers(size_t input, const std::vector<kernels::RowOutput>& answers,
                    const Penalties* penalties = nullptr) const {
    for (uint32_t row = 0; row < std::min(rows_, 4u); ++row) {
      kernels::RowRequest request = MakeRequest(input, row, penalties);
      request.logits = logits_.row(SourceOf(input, row));
      SORTITION_CHECK(answers[row] == law::SampleRowReference(request));
    }
  }

 private:
  size_t SourceOf(size_t input, uint32_t row) const { return (row * 5 + input * 7) % logits_.count(); }
  uint64_t OffsetOf(size_t input, uint32_t row) const { return (input * rows_ + row) * logits_.row_bytes(); }

  kernels::RowRequest MakeRequest(size_t input, uint32_t row, const Penalties* penalties = nullptr) const {
    kernels::RowRequest request;
    request.dtype = kernels::DType::kBF16;
    request.live_vocabulary = kVocabulary;
    request.parameters = &parameters_;
    request.noise = {.seed = 99, .position = uint32_t(input), .stream = row};
    if (penalties != nullptr) penalties->PutInto(row, &request);
    return request;
  }

  devices::cuda::Result Fill() {
    const auto begin = reinterpret_cast<devices::cuda::DevicePointer>(memory_->data());
    for (uint32_t input = 0; input < inputs_; ++input) {
      for (uint32_t row = 0; row < rows_; ++row) {
        const auto copied = context_->api().MemcpyHtoDAsync(
            begin + OffsetOf(input, row), logits_.row(SourceOf(input, row)), logits_.row_bytes(), stream_);
        if (copied != devices::cuda::Result::kSuccess) return copied;
      }
    }
    return context_->api().StreamSynchronize(stream_);
  }

  std::unique_ptr<CudaSampler::State> MakeSampler(uint32_t input) {
    auto sampler = CudaSampler::State::Create(context_, {.rows = rows_, .vocabulary = kVocabulary});
    CheckSuccess(sampler.status());
    CheckSuccess((*sampler)->Bind({.logits = static_cast<std::byte*>(memory_->data()) + OffsetOf(input, 0),
                                   .row_bytes = logits_.row_bytes(),
                                   .dtype = kernels::DType::kBF16,
                                   .rows = rows_,
                                   .vocabulary = kVocabulary,
                                   .tokens = reinterpret_cast<int32_t*>(tokens_)}));
    for (uint32_t row = 0; row < rows_; ++row) {
      CheckSuccess((*sampler)->SetRow(row, parameters_, MakeRequest(input, row).noise));
    }
    CheckSuccess((*sampler)->Upload(stream_));
    return *std::move(sampler);
  }

  static kernels::RowParameters Parameters() {
    kernels::RowParameters parameters;
    SORTITION_CHECK(Compile({.parameters = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f}}, &parameters).ok());
    return parameters;
  }

  const std::shared_ptr<Context> context_;
  devices::Device* const device_;
  const uint32_t rows_;
  const Logits logits_;
  const uint32_t inputs_;
  const kernels::RowParameters parameters_ = Parameters();
  std::unique_ptr<client::CudaRows> memory_;
  std::shared_ptr<const devices::ImportedMemory> imported_;
  devices::cuda::StreamHandle stream_ = nullptr;
  devices::cuda::DevicePointer tokens_ = 0;
  std::vector<std::unique_ptr<CudaSampler::State>> samplers_;
};

// Measures steps whose rows lie on the device, with penalties that are uploaded.
void MeasurePenalties(SharedRows* shared, uint32_t rows, Report* report) {
  Penalties penalties(rows);
  const auto step = [&](size_t input) {
    penalties.Step();
    return shared->OnDevice(input, false, false, &penalties);
  };
  shared->CheckAnswers(1, step(1), &penalties);
  const std::vector<double> took =
      MeasureInterleaved({{"none", [&](size_t input) { shared->OnDevice(input, false, false); }},
                          {"uploaded", [&](size_t input) { step(input); }}},
                         {.inputs = shared->inputs(), .rounds = 10});
  report->Add({absl::StrCat("shared_rows/penalties_uploaded_", rows), took[1], "us", took[0]});
}

void MeasureImport(const Context& context, devices::Device* device, Report* report) {
  const auto memory = client::CudaRows::CreateOn(context.api(), context.hardware(), kImported);
  CheckSuccess(memory.status());
  const auto import = [&](size_t) { CheckSuccess(device->Import((*memory)->handle()).status()); };
  const std::vector<double> took = MeasureInterleaved({{"import", import}}, {.inputs = 1, .rounds = 50});
  report->Add({"shared_rows/import_64_mib", took[0], "us", {}});
}

}  // namespace

void MeasureSharedRows(const std::shared_ptr<Context>& context, Report* report) {
  if (!context->hardware().shares_memory) {
    std::cerr << "shared rows: skipped: the device does not share memory\n";
    return;
  }
  const auto device = devices::CudaDevice::Start(context->api(), context->hardware(), {.memory = kMemory});
  CheckSuccess(device.status());
  MeasureImport(*context, device->get(), report);
  for (const uint32_t rows : {1u, 32u, 256u}) {
    SharedRows shared(context, device->get(), rows);
    shared.CheckAnswers(0, shared.Library(0));
    for (const auto& [on_host, may_change] : {std::pair{false, false}, {false, true}, {true, false}}) {
      shared.CheckAnswers(1, shared.OnDevice(1, on_host, may_change));
    }
    const std::vector<double> took =
        MeasureInterleaved({{"library", [&](size_t input) { shared.Library(input); }},
                            {"in_place", [&](size_t input) { shared.OnDevice(input, false, false); }},
                            {"copied", [&](size_t input) { shared.OnDevice(input, false, true); }},
                            {"host", [&](size_t input) { shared.OnDevice(input, true, false); }}},
                           {.inputs = shared.inputs(), .rounds = 10});
    report->Add({absl::StrCat("shared_rows/in_place_", rows), took[1], "us", took[0]});
    report->Add({absl::StrCat("shared_rows/copied_", rows), took[2], "us", took[0]});
    report->Add({absl::StrCat("shared_rows/host_", rows), took[3], "us", took[0]});
    MeasurePenalties(&shared, rows, report);
  }
}

}  // namespace sortition::bench
