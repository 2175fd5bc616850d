// Cost of sampling in another process: rows on a GPU, sampled by a sortitiond on the same GPU, beside libsortition on
// the caller's stream. Results are microseconds from the launch of the work that writes the rows (a copy within the
// device) until their tokens are on the host; 128,256 bf16 logits a row, temperature, top-k and top-p.
//
// Run it with and without MPS: without it the kernels of the two processes take turns on the GPU.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/cuda/cuda_ready.h"
#include "client/cpp/cuda/cuda_rows.h"
#include "client/sortition/cuda_state.h"
#include "kernels/check.h"
#include "kernels/cuda/image.h"
#include "kernels/law/reference.h"
#include "tests/bench/model.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"

ABSL_FLAG(int, device, 0, "Which CUDA device, in the driver's order");
ABSL_FLAG(std::vector<std::string>, rows, (std::vector<std::string>{"1", "32", "256"}), "Rows of a batch");
ABSL_FLAG(uint32_t, vocabulary, 128'256, "Logits of a row");
ABSL_FLAG(int, rounds, 20, "Over all inputs");
ABSL_FLAG(std::string, name, "served", "Of the results: served_mps, say, where MPS runs");

namespace sortition::bench {
namespace {

using client::TransportKind;
using devices::cuda::Context;
using devices::cuda::CurrentContext;
using devices::cuda::DevicePointer;

constexpr uint64_t kMostBytes = 320 << 20;  // of the inputs together: more than the device's cache holds
constexpr uint64_t kSeed = 99;

void CheckSuccess(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "bench_served: " << status.message() << "\n";
  std::exit(1);
}

v1::SamplingParameters Parameters() {
  v1::SamplingParameters parameters;
  parameters.set_temperature(0.7f);
  parameters.set_top_k(50);
  parameters.set_top_p(0.95f);
  return parameters;
}

// A worker of a server, with memory for one batch on the GPU that the server reads.
class Worker {
 public:
  Worker(const std::string& target, TransportKind kind, const Context& context, uint32_t rows, uint32_t vocabulary)
      : vocabulary_(vocabulary) {
    client::ClientOptions options;
    options.targets = {target};
    options.transport.kind = kind;
    client_ = Connect(std::move(options));
    auto made = client::CudaRows::CreateOn(context.api(), context.hardware(), uint64_t{rows} * vocabulary * 2);
    CheckSuccess(made.status());
    memory_ = *std::move(made);
    auto shared = client_->ShareDevice(memory_->rows());
    CheckSuccess(shared.status());
    lease_ = *std::move(shared);
    CheckSuccess(lease_->sharing());
    const auto page = client_->AllocateRows(client::CudaReady::kBytes);
    CheckSuccess(page.status());
    auto ready = client::CudaReady::CreateOn(context.api(), context.hardware(), page->data);
    CheckSuccess(ready.status());
    ready_ = *std::move(ready);
    sequences_ = OpenSequences(client_.get(), "row", rows, vocabulary, Parameters(),
                               [](size_t row, client::SequenceOptions* options) {
                                 options->seed = kSeed;
                                 options->choice_index = static_cast<uint32_t>(row);
                               });
  }

  DevicePointer rows() const { return reinterpret_cast<DevicePointer>(memory_->data()); }

  // The first row's token; its position goes up by one. `early`: before the stream has written the rows.
  uint32_t Step(devices::cuda::StreamHandle stream, bool early) {
    client::Batch batch{v1::DTYPE_BF16, vocabulary_, {}};
    const auto* const data = static_cast<const std::byte*>(memory_->data());
    for (size_t row = 0; row < sequences_.size(); ++row) {
      batch.rows.push_back({sequences_[row].get(), data + row * vocabulary_ * 2});
    }
    if (early) {
      const auto word = ready_->Raise(stream);
      CheckSuccess(word.status());
      batch.ready = *word;
    } else {
      CheckSuccess(memory_->WaitFor(stream));
    }
    const auto outcomes = client_->Step(batch);
    CheckSuccess(outcomes.status());
    for (const client::RowResult& outcome : *outcomes) {
      if (const auto* error = std::get_if<client::RowError>(&outcome)) {
        CheckSuccess(absl::InternalError(client::Describe(*error)));
      }
    }
    return std::get<v1::DrawResult>((*outcomes)[0]).token();
  }
  uint32_t position() const { return sequences_[0]->position(); }

 private:
  const uint32_t vocabulary_;
  std::unique_ptr<client::CudaRows> memory_;  // outlives the client
  std::unique_ptr<client::Client> client_;
  std::shared_ptr<const client::Client::DeviceMemory> lease_;
  std::unique_ptr<client::CudaReady> ready_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
};

// The work that writes the rows, and the library's sampler of them.
class Engine {
 public:
  Engine(std::shared_ptr<Context> context, uint32_t rows, uint32_t vocabulary)
      : context_(std::move(context)),
        rows_(rows),
        logits_(Shape::kPeaked, kernels::DType::kBF16, 16, vocabulary),
        batch_bytes_(rows * logits_.row_bytes()),
        inputs_(static_cast<uint32_t>(std::clamp<uint64_t>(kMostBytes / batch_bytes_, 2, 32))) {
    const auto& api = context_->api();
    const CurrentContext current(*context_);
    CheckSuccess(ToStatus(api, api.StreamCreate(&stream_, devices::cuda::kStreamNonBlocking), "cuStreamCreate"));
    CheckSuccess(ToStatus(api, api.MemAlloc(&inputs_memory_, inputs_ * batch_bytes_), "cuMemAlloc"));
    CheckSuccess(ToStatus(api, api.MemAlloc(&rows_memory_, batch_bytes_), "cuMemAlloc"));
    CheckSuccess(ToStatus(api, api.MemAlloc(&tokens_, 4 * rows), "cuMemAlloc"));
    for (uint32_t i = 0; i < inputs_ * rows; ++i) {
      CheckSuccess(ToStatus(api,
                            api.MemcpyHtoDAsync(inputs_memory_ + i * logits_.row_bytes(), logits_.row(SourceOf(i)),
                                                logits_.row_bytes(), stream_),
                            "cuMemcpyHtoDAsync"));
    }
    CheckSuccess(ToStatus(api, api.StreamSynchronize(stream_), "cuStreamSynchronize"));
    auto sampler = CudaSampler::State::Create(context_, {.rows = rows, .vocabulary = vocabulary});
    CheckSuccess(sampler.status());
    sampler_ = *std::move(sampler);
    CheckSuccess(sampler_->Bind({.logits = reinterpret_cast<void*>(rows_memory_),
                                 .row_bytes = logits_.row_bytes(),
                                 .dtype = kernels::DType::kBF16,
                                 .rows = rows,
                                 .vocabulary = vocabulary,
                                 .tokens = reinterpret_cast<int32_t*>(tokens_)}));
    SORTITION_CHECK(Compile({.parameters = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f}}, &parameters_).ok());
    for (uint32_t row = 0; row < rows; ++row) {
      CheckSuccess(sampler_->SetRow(row, parameters_, {.seed = kSeed, .stream = row}));
    }
    CheckSuccess(sampler_->Upload(stream_));
  }
  ~Engine() {
    const CurrentContext current(*context_);
    sampler_.reset();
    for (const DevicePointer memory : {inputs_memory_, rows_memory_, tokens_}) context_->api().MemFree(memory);
    context_->api().StreamDestroy(stream_);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  uint32_t inputs() const { return inputs_; }
  devices::cuda::StreamHandle stream() const { return stream_; }

  // The work that writes a batch; does not wait.
  void Write(size_t input, DevicePointer to) {
    const CurrentContext current(*context_);
    const auto& api = context_->api();
    CheckSuccess(ToStatus(api, api.MemcpyDtoDAsync(to, inputs_memory_ + input * batch_bytes_, batch_bytes_, stream_),
                          "cuMemcpyDtoDAsync"));
  }
  void Library(size_t input) {
    Write(input, rows_memory_);
    const CurrentContext current(*context_);
    answers_.resize(rows_);
    CheckSuccess(sampler_->Sample(stream_));
    CheckSuccess(sampler_->Download(stream_, answers_));
  }
  void WriteAlone(size_t input) {
    Write(input, rows_memory_);
    const CurrentContext current(*context_);
    CheckSuccess(ToStatus(context_->api(), context_->api().StreamSynchronize(stream_), "cuStreamSynchronize"));
  }

  // The law's token for the first row of an input.
  uint32_t Expected(size_t input, uint32_t position) const {
    kernels::RowRequest request;
    request.dtype = kernels::DType::kBF16;
    request.live_vocabulary = static_cast<uint32_t>(logits_.row_bytes() / 2);
    request.parameters = &parameters_;
    request.noise = {.seed = kSeed, .position = position};
    request.logits = logits_.row(SourceOf(input * rows_));
    return law::SampleRowReference(request).token;
  }

 private:
  size_t SourceOf(size_t row) const { return row * 5 % logits_.count(); }

  const std::shared_ptr<Context> context_;
  const uint32_t rows_;
  const Logits logits_;
  const uint64_t batch_bytes_;
  const uint32_t inputs_;
  kernels::RowParameters parameters_;
  devices::cuda::StreamHandle stream_ = nullptr;
  DevicePointer inputs_memory_ = 0, rows_memory_ = 0, tokens_ = 0;
  std::unique_ptr<CudaSampler::State> sampler_;
  std::vector<kernels::RowOutput> answers_;
};

void Measure(const std::shared_ptr<Context>& context, const std::string& socket, uint32_t rows, Report* report) {
  const uint32_t vocabulary = absl::GetFlag(FLAGS_vocabulary);
  Engine engine(context, rows, vocabulary);
  Worker ring(socket + "_memory", TransportKind::kRing, *context, rows, vocabulary);
  Worker stream(socket + "_stream", TransportKind::kGrpc, *context, rows, vocabulary);
  const auto step = [&](Worker* worker, bool early) {
    return [&engine, worker, early](size_t input) {
      engine.Write(input, worker->rows());
      return worker->Step(engine.stream(), early);
    };
  };
  for (Worker* worker : {&ring, &stream}) {
    for (const bool early : {false, true}) {
      const uint32_t expected = engine.Expected(1, worker->position());
      SORTITION_CHECK(step(worker, early)(1) == expected);
    }
  }
  const std::vector<double> took =
      MeasureInterleaved({{"library", [&](size_t input) { engine.Library(input); }},
                          {"write", [&](size_t input) { engine.WriteAlone(input); }},
                          {"ring", step(&ring, false)},
                          {"ring_early", step(&ring, true)},
                          {"stream", step(&stream, false)},
                          {"stream_early", step(&stream, true)}},
                         {.inputs = engine.inputs(), .rounds = static_cast<size_t>(absl::GetFlag(FLAGS_rounds))});
  const auto add = [&](const char* way, double microseconds, std::optional<double> baseline) {
    report->Add({absl::StrCat(absl::GetFlag(FLAGS_name), "/", way, "_", rows), microseconds, "us", baseline});
  };
  add("library", took[0], {});
  add("write", took[1], {});
  add("ring", took[2], took[0]);
  add("ring_early", took[3], took[0]);
  add("stream", took[4], took[0]);
  add("stream_early", took[5], took[0]);
}

int Run() {
  const auto api = devices::cuda::Api::Load();
  if (!api.ok()) {
    const bool is_there = !absl::IsNotFound(api.status());
    std::cerr << "bench_served: " << (is_there ? "" : "skipped: ") << api.status().message() << "\n";
    return is_there ? 1 : 0;
  }
  const auto hardware = devices::cuda::FindHardware(*api, absl::GetFlag(FLAGS_device));
  CheckSuccess(hardware.status());
  if (!hardware->shares_memory) {
    std::cerr << "bench_served: skipped: the device does not share memory\n";
    return 0;
  }
  const auto context = Context::Create(*api, *hardware, kernels::cuda::CompiledImages());
  CheckSuccess(context.status());
  const std::string socket =
      absl::StrCat("unix:", (std::filesystem::temp_directory_path() / absl::StrCat("served_", getpid())).string());
  const auto server =
      StartServer({absl::StrCat("--devices=cuda:", absl::GetFlag(FLAGS_device)),
                   absl::StrCat("--listen=127.0.0.1:0,", socket, "_stream"),
                   absl::StrCat("--memory_listen=", socket, "_memory"), "--connection_device_bytes=1073741824"});
  Report report("served", absl::StrCat(MachineName(), ", ", hardware->name));
  for (const std::string& rows : absl::GetFlag(FLAGS_rows)) {
    uint32_t count = 0;
    SORTITION_CHECK(absl::SimpleAtoi(rows, &count) && count > 0);
    Measure(*context, socket, count, &report);
  }
  return Publish(report);
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Run();
}
