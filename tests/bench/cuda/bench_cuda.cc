// Cost of sampling a batch on a CUDA device, its logits in the device's memory. Rows are bf16 unless the case names
// another type. A graph runs one batch after another, each over other logits, so that no batch finds its logits in the
// cache; results are microseconds a batch. The baseline is one read of the logits at the bandwidth of a copy of them,
// measured in the same run. Results are written after each case. A wrong answer is named, and the exit status is 1.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/bench/logits.h"
#include "client/sortition/cuda_state.h"
#include "kernels/check.h"
#include "kernels/cuda/image.h"
#include "kernels/law/reference.h"
#include "tests/bench/cuda/graph.h"
#include "tests/bench/cuda/shared_rows.h"
#include "tests/bench/suite.h"

ABSL_FLAG(uint32_t, device, 0, "Which CUDA device, in the driver's order");
ABSL_FLAG(std::string, cases, "", "Only those whose names begin so; all if empty");
ABSL_FLAG(bool, list, false, "Print the cases' names, and measure nothing");
ABSL_FLAG(int, rounds, 20, "Replays of each graph");
ABSL_FLAG(uint64_t, megabytes, 600, "Logits that a graph reads; several times the device's cache");

namespace sortition::bench {
namespace {

using devices::cuda::Context;
using kernels::RowParameters;

// Parameters that the rows of a batch take in turn.
std::vector<law::SamplingParameters> Mixed() {
  return {{.temperature = 0.7f, .top_k = 50, .top_p = 0.95f, .min_p = 0.02f},
          {.temperature = 0},
          {.temperature = 0.8f},
          {.temperature = 1, .top_k = 20},
          {.temperature = 1, .min_p = 0.05f},
          {.temperature = 0.9f, .top_k = 200, .top_p = 0.9f}};
}

struct Case {
  std::string name;
  uint32_t rows;
  uint32_t vocabulary;
  std::vector<law::SamplingParameters> options;
  bool logprob = false;
  uint32_t edits = 0;  // tokens with penalties, and a grammar's mask
  Shape shape = Shape::kPeaked;
  bool times_steps = false;  // true: also times the upload of each step's penalties
  kernels::DType dtype = kernels::DType::kBF16;
};

std::vector<Case> Cases() {
  const law::SamplingParameters filtered = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f};
  std::vector<Case> cases;
  for (const auto& [rows, vocabulary] :
       {std::pair{1u, 128'256u}, {32u, 128'256u}, {256u, 128'256u}, {512u, 151'936u}}) {
    cases.push_back({absl::StrCat("token_", rows), rows, vocabulary, Mixed()});
    cases.push_back({absl::StrCat("token_logprob_", rows), rows, vocabulary, Mixed(), true});
    if (rows != 256) cases.push_back({absl::StrCat("top_k_top_p_", rows, "_peaked"), rows, vocabulary, {filtered}});
  }
  for (const auto& [name, shape] :
       {std::pair{"peaked", Shape::kPeaked}, {"flat", Shape::kFlat}, {"ties", Shape::kTies}}) {
    cases.push_back({absl::StrCat("top_k_top_p_256_", name), 256, 128'256, {filtered}, false, 0, shape});
  }
  // Peers want f32.
  for (const auto& [name, dtype] : {std::pair{"f32", kernels::DType::kF32}, {"f16", kernels::DType::kF16}}) {
    for (const uint32_t rows : {1u, 32u, 256u}) {
      cases.push_back({absl::StrCat("top_k_top_p_", name, "_", rows, "_peaked"), rows, 128'256, {filtered}});
      cases.back().dtype = dtype;
    }
    cases.push_back({absl::StrCat("token_logprob_", name, "_256"), 256, 128'256, Mixed(), true});
    cases.back().dtype = dtype;
  }
  // Cases of the third kernel: chains that list their kept tokens at once, and chains that need sums over whole rows
  // first.
  const std::pair<const char*, law::SamplingParameters> chains[] = {
      {"top_k_xtc", {.top_k = 50, .xtc_probability = 0.5f}},
      {"top_k_typical_p", {.top_k = 50, .typical_p = 0.9f}},
      {"top_n_sigma", {.top_n_sigma = 1}},
      {"typical_p", {.typical_p = 0.9f}},
      {"top_a", {.top_a = 0.1f}},
      {"smoothing", {.smoothing_factor = 0.2f}}};
  for (const auto& [name, options] : chains) {
    for (const uint32_t rows : {1u, 256u}) {
      cases.push_back({absl::StrCat(name, "_", rows), rows, 128'256, {options}});
    }
  }
  for (const uint32_t rows : {1u, 256u}) {
    cases.push_back({absl::StrCat("penalties_and_mask_", rows), rows, 128'256, Mixed(), false, 2000});
    cases.back().times_steps = true;
  }
  cases.push_back({"penalties_and_mask_logprob_256", 256, 128'256, Mixed(), true, 2000});
  return cases;
}

void CheckSuccess(const Status& status) {
  if (status.ok()) return;
  std::cerr << "bench_cuda: " << status.message << "\n";
  std::exit(1);
}

// A sampler with its logits.
class Input {
 public:
  Input(const Case& what, const Logits& logits, uint32_t number, const std::shared_ptr<Context>& context,
        Stream* stream)
      : stream_(*stream) {
    const uint64_t row_bytes = logits.row_bytes();
    bytes_ = row_bytes * what.rows;
    memory_ = stream->Allocate(bytes_);
    tokens_ = stream->Allocate(8 * what.rows);
    // Other rows, or in another order, than other inputs.
    for (uint32_t row = 0; row < what.rows; ++row) {
      const size_t source = (row * 5 + number * 7) % logits.count();
      stream->Upload(memory_ + row_bytes * row, logits.row(source), row_bytes);
      sources_.push_back(source);
    }
    auto state = CudaSampler::State::Create(context, {.rows = what.rows,
                                                      .vocabulary = what.vocabulary,
                                                      .edits = what.edits == 0 ? 0 : what.edits + kDrawnEdits,
                                                      .top = 0});
    SORTITION_CHECK(state.ok());
    sampler_ = std::make_unique<CudaSampler>(*std::move(state));
    Set(what, row_bytes, number);
  }
  ~Input() {
    sampler_.reset();
    stream_.Free(memory_);
    stream_.Free(tokens_);
    if (mask_ != nullptr) stream_.Free(mask_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  std::byte* memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }
  void Sample() { CheckSuccess(sampler_->Sample(stream_.handle())); }

  // Returns the microseconds from a step's launch until its outputs are the host's.
  double TimeStep() {
    const auto start = std::chrono::steady_clock::now();
    Sample();
    CudaTicket ticket;
    std::vector<kernels::RowOutput> outputs;
    CheckSuccess(sampler_->Fetch(stream_.handle(), &ticket));
    CheckSuccess(sampler_->Await(ticket, &outputs));
    return MicrosecondsSince(start);
  }

  // Does the host's part of a decoding step: one more token is counted in every row, whose edits are sent.
  void StepWithLists() {
    kernels::LogitEdit& edit = edits_[++steps_ % edits_.size()];
    edit.penalty = law::PenaltyBits(kFrequency, kPresence, uint32_t(6 + steps_ % 50));
    for (uint32_t row = 0; row < requests_.size(); ++row) CheckSuccess(sampler_->SetEdits(row, edits_));
    CheckSuccess(sampler_->Upload(stream_.handle()));
    Sample();
  }

  // From now on Sample counts the drawn tokens on the device.
  void StartSequences() {
    std::vector<TokenCount> counts;
    for (size_t i = 0; i < edits_.size(); ++i) {
      counts.push_back({edits_[i].token, uint32_t(1 + i % 5)});
      edits_[i].penalty = law::PenaltyBits(kFrequency, kPresence, counts[i].count);
    }
    for (uint32_t row = 0; row < requests_.size(); ++row) {
      CheckSuccess(sampler_->SetRow(row, parameters_[row], requests_[row].noise));
      CheckSuccess(sampler_->SetEdits(row, {}));
      CheckSuccess(sampler_->SetSequence(
          row, {.repetition_penalty = kRepetition, .frequency_penalty = kFrequency, .presence_penalty = kPresence},
          counts));
    }
    CheckSuccess(sampler_->Upload(stream_.handle()));
  }

  // Returns whether the first rows' answers are the reference's.
  bool IsRight(const Logits& logits) {
    const size_t count = std::min<size_t>(requests_.size(), 8);
    std::vector<kernels::RowOutput> answers(count);
    CheckSuccess(sampler_->Download(stream_.handle(), answers));
    for (size_t i = 0; i < count; ++i) {
      kernels::RowRequest request = requests_[i];
      request.parameters = &parameters_[i];
      request.edits = edits_;
      request.logits = logits.row(sources_[i]);
      if (!(answers[i] == law::SampleRowReference(request))) return false;
    }
    return true;
  }

 private:
  static constexpr float kRepetition = 1.1f;
  static constexpr float kFrequency = 0.1f;
  static constexpr float kPresence = 0.2f;
  static constexpr uint32_t kDrawnEdits = 4000;

  void Set(const Case& what, uint64_t row_bytes, uint32_t number) {
    std::vector<uint32_t> mask;
    if (what.edits != 0) {
      for (uint32_t i = 0; i < what.edits; ++i) {
        edits_.push_back({.token = i * (what.vocabulary / what.edits),
                          .flags = kernels::LogitEdit::kRepeated,
                          .penalty = law::PenaltyBits(kFrequency, kPresence, 1 + i % 5)});
      }
      mask.resize((what.vocabulary + 31) / 32, 0xffffbfffu);
      mask_ = stream_.Allocate(4 * mask.size());
      stream_.Upload(mask_, mask.data(), 4 * mask.size());
      mask_words_ = mask;
    }
    CheckSuccess(sampler_->Bind({.logits = memory_,
                                 .row_bytes = row_bytes,
                                 .dtype = what.dtype,
                                 .rows = what.rows,
                                 .vocabulary = what.vocabulary,
                                 .allowed_bits = reinterpret_cast<const uint32_t*>(mask_),
                                 .tokens = reinterpret_cast<int32_t*>(tokens_),
                                 .logprobs = reinterpret_cast<float*>(tokens_) + what.rows}));
    parameters_.resize(what.rows);
    for (uint32_t row = 0; row < what.rows; ++row) {
      law::SamplingParameters options = what.options[(row + number) % what.options.size()];
      if (what.edits != 0) options.repetition_penalty = kRepetition;
      CheckSuccess(Compile({.parameters = options, .raw_logprob = what.logprob}, &parameters_[row]));
      kernels::RowRequest request;
      request.dtype = what.dtype;
      request.live_vocabulary = what.vocabulary;
      request.noise = {.seed = 99, .position = number, .stream = row};
      if (!mask_words_.empty()) request.allowed_bits = mask_words_.data();
      CheckSuccess(sampler_->SetRow(row, parameters_[row], request.noise));
      if (what.edits != 0) CheckSuccess(sampler_->SetEdits(row, edits_));
      requests_.push_back(request);
    }
    CheckSuccess(sampler_->Upload(stream_.handle()));
  }

  Stream& stream_;
  std::unique_ptr<CudaSampler> sampler_;
  std::byte* memory_ = nullptr;
  std::byte* tokens_ = nullptr;
  std::byte* mask_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<size_t> sources_;
  std::vector<RowParameters> parameters_;
  std::vector<kernels::LogitEdit> edits_;
  std::vector<uint32_t> mask_words_;
  std::vector<kernels::RowRequest> requests_;
  size_t steps_ = 0;
};

// Returns whether the answers were right.
bool Measure(const Case& what, const std::shared_ptr<Context>& context, Stream* stream, Report* report) {
  const Logits logits(what.shape, what.dtype, 16, what.vocabulary);
  const uint64_t bytes = logits.row_bytes() * what.rows;
  const auto count = uint32_t(std::clamp<uint64_t>(absl::GetFlag(FLAGS_megabytes) * 1'000'000 / bytes, 4, 400));
  std::vector<std::unique_ptr<Input>> inputs;
  for (uint32_t i = 0; i < count; ++i) inputs.push_back(std::make_unique<Input>(what, logits, i, context, stream));
  const int rounds = absl::GetFlag(FLAGS_rounds);
  const double sampled = stream->TimeGraph(
                             [&] {
                               for (const auto& input : inputs) input->Sample();
                             },
                             rounds) /
                         count;
  bool is_right = inputs[0]->IsRight(logits) && inputs[count - 1]->IsRight(logits);
  // In large pieces, so that a copy's start does not count: each input's bytes are read once and written once.
  std::byte* const to = stream->Allocate(inputs[0]->bytes());
  const double copied = stream->TimeGraph(
                            [&] {
                              for (const auto& input : inputs) stream->Copy(to, input->memory(), input->bytes());
                            },
                            rounds) /
                        count;
  stream->Free(to);
  report->Add({what.name, sampled, "us", copied / 2});
  std::cerr << what.name << ": " << sampled << " us for " << bytes << " bytes\n";
  if (what.edits == 0) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      for (const auto& input : inputs) times.push_back(input->TimeStep());
    }
    report->Add({absl::StrCat(what.name, "_to_host"), Percentile(std::move(times), 50), "us", sampled});
  }
  if (!what.times_steps) return is_right;
  const auto add = [&](const char* name, double took) {
    report->Add({absl::StrCat(what.name, "_step_", name), took / count, "us", sampled});
    std::cerr << what.name << "_step_" << name << ": " << took / count << " us\n";
  };
  const double lists = stream->TimeCalls(
      [&] {
        for (const auto& input : inputs) input->StepWithLists();
      },
      rounds);
  is_right = inputs[0]->IsRight(logits) && is_right;
  add("lists", lists);
  for (const auto& input : inputs) input->StartSequences();
  inputs[0]->Sample();
  is_right = inputs[0]->IsRight(logits) && is_right;
  add("sequence", stream->TimeGraph(
                      [&] {
                        for (const auto& input : inputs) input->Sample();
                      },
                      rounds));
  return is_right;
}

int Run() {
  if (absl::GetFlag(FLAGS_list)) {
    for (const Case& what : Cases()) std::cout << what.name << "\n";
    return 0;
  }
  const auto api = devices::cuda::Api::Load();
  const auto hardware = api.ok() ? devices::cuda::FindHardware(*api) : api.status();
  if (!hardware.ok() || absl::GetFlag(FLAGS_device) >= hardware->size()) {
    const bool is_there = hardware.ok() || !absl::IsNotFound(hardware.status());
    std::cerr << "bench_cuda: " << (is_there ? "" : "skipped: ")
              << (hardware.ok() ? "no such device" : hardware.status().message()) << "\n";
    return 1;
  }
  const devices::cuda::Hardware& one = (*hardware)[absl::GetFlag(FLAGS_device)];
  const auto context = Context::Create(*api, one, kernels::cuda::CompiledImages());
  if (!context.ok()) {
    std::cerr << "bench_cuda: " << context.status().message() << "\n";
    return 1;
  }
  Report report("cuda", absl::StrCat(one.name, " on ", MachineName()));
  const std::string wanted = absl::GetFlag(FLAGS_cases);
  if (absl::StartsWith("shared_rows", wanted)) MeasureSharedRows(*context, &report);
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [&](const Case& what) { return !absl::StartsWith(what.name, wanted); });
  bool is_right = true;
  if (!cases.empty()) {
    Stream stream(*context);
    for (const Case& what : cases) {
      if (!Measure(what, *context, &stream, &report)) {
        std::cerr << "bench_cuda: " << what.name << ": wrong\n";
        is_right = false;
      }
      Save(report);
    }
  }
  const int published = Publish(report);
  return is_right ? published : 1;
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Run();
}
