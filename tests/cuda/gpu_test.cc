// Sequences on a stream, compact rows and texts on a GPU equal the processor's. The bundle has this program for
// machines with a GPU. The suite runs it over the emulated driver.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "client/local/cuda_stream.h"
#include "client/sortition/sampler.h"
#include "devices/cuda/api.h"
#include "devices/cuda/context.h"
#include "devices/cuda/cuda_device.h"
#include "kernels/cpu/compact/state_row.h"
#include "tests/conformance/on_device.h"
#include "tests/conformance/random_row.h"
#include "tests/support/device_texts.h"
#include "tests/support/scale.h"

namespace sortition::gpu_test {
namespace {

using devices::cuda::Api;
using devices::cuda::Hardware;
using CUresult = devices::cuda::Result;

constexpr uint32_t kRows = 8;

// The driver's first GPU. Where there is no driver, no GPU and no way to run one, the case is skipped by name.
class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto api = Api::Load();
    if (absl::IsNotFound(api.status())) GTEST_SKIP() << api.status().message();
    ASSERT_TRUE(api.ok()) << api.status();
    api_ = std::make_unique<const Api>(*std::move(api));
    const auto hardware = devices::cuda::FindHardware(*api_);
    if (absl::IsNotFound(hardware.status())) GTEST_SKIP() << hardware.status().message();
    ASSERT_TRUE(hardware.ok()) << hardware.status();
    if (hardware->empty()) GTEST_SKIP() << "no GPU of compute capability 8.0 or later";
    hardware_ = std::make_unique<const Hardware>(hardware->front());
  }

  int index() const { return int(hardware_->index); }

  std::unique_ptr<const Api> api_;
  std::unique_ptr<const Hardware> hardware_;
};

client::SequenceOptions MakeOptions(uint32_t row, uint32_t vocabulary) {
  client::SequenceOptions options;
  options.request_id = "row-" + std::to_string(row);
  options.vocabulary_size = vocabulary;
  options.seed = 40 + row;
  options.prompt = {1, 2, 3, 2};
  v1::SamplingParameters& p = options.parameters;
  p.set_temperature(row == 6 ? 0.0f : 0.8f);
  if (row != 0) p.set_repetition_penalty(1.2f);
  if (row == 1 || row == 4) p.set_frequency_penalty(0.3f);
  if (row == 2) p.set_presence_penalty(0.7f);
  if (row == 1) p.mutable_raw_logprobs()->set_top(3);
  if (row == 2) p.mutable_mirostat()->set_version(2);
  if (row == 3) p.set_entropy(true);
  if (row == 4) p.mutable_processed_logprobs()->set_top(5);
  if (row == 5) p.set_top_k(20);
  if (row == 7) p.set_typical_p(0.8f);
  p.add_banned_token_ids(7);
  return options;
}

std::string TextOf(const client::RowResult& result) {
  const auto* const draw = std::get_if<v1::DrawResult>(&result);
  return draw != nullptr ? draw->SerializeAsString() : "error: " + std::get<client::RowError>(result).message;
}

// An engine's thread captures a graph, in the mode in which other threads can invalidate it.
TEST_F(Gpu, LivesLeaveGraphsOfOthersValid) {
  CUresult (*begin)(CUstream_st * stream, int mode) = nullptr;
  CUresult (*end)(CUstream_st * stream, void** graph) = nullptr;
  CUresult (*destroy)(void* graph) = nullptr;
  const auto find = [&](auto* function, const char* symbol) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(api_->library.get(), symbol));
    ASSERT_NE(*function, nullptr) << symbol;
  };
  find(&begin, "cuStreamBeginCapture_v2");
  find(&end, "cuStreamEndCapture");
  find(&destroy, "cuGraphDestroy");
  const auto context = devices::cuda::Context::OfDevice(index());
  ASSERT_TRUE(context.ok()) << context.status();
  const devices::cuda::CurrentContext current(**context);
  CUstream_st* captured = nullptr;
  ASSERT_EQ(api_->StreamCreate(&captured, devices::cuda::kStreamNonBlocking), CUresult::kSuccess);
  OnDevice device(*api_, *hardware_);
  ASSERT_TRUE(device.Open(4096).ok());
  ASSERT_EQ(begin(captured, 0), CUresult::kSuccess);
  std::thread([&] {
    auto stream = client::CudaStream::Create(index(), {.rows = 1, .vocabulary = 1000, .edits = 300});
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_TRUE((*stream)->Put(0, *client::LocalSequence::Open(MakeOptions(0, 1000))).ok());
    const uint32_t rows[] = {0};
    const auto step = (*stream)->Step({.logits = device.at(0), .row_bytes = 4000, .dtype = v1::DTYPE_F32, .rows = rows},
                                      device.stream());
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_TRUE((*stream)->IsDone(step->ticket).ok());
    EXPECT_TRUE((*stream)->Await(step->ticket).ok());
  }).join();
  void* graph = nullptr;
  EXPECT_EQ(end(captured, &graph), CUresult::kSuccess);
  if (graph != nullptr) destroy(graph);
  api_->StreamDestroy(captured);
}

// Steps are queued three ahead, and each has the bits of a sequence that is stepped by itself. The model knows a few
// distributions, so that tokens come again.
TEST_F(Gpu, StreamEqualsLocalSequences) {
  constexpr uint32_t kVocabulary = 20'000;
  constexpr uint32_t kDistributions = 5;
  constexpr size_t kLate = 3;
  constexpr uint64_t kRowBytes = sizeof(float) * kVocabulary;
  OnDevice device(*api_, *hardware_);
  ASSERT_TRUE(device.Open(kRowBytes * kRows * kDistributions).ok());
  std::vector<float> logits(kVocabulary * kRows * kDistributions);
  uint32_t state = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    state = state * 1'664'525u + 1'013'904'223u;
    logits[i] = float(state >> 20) / 1024.0f + (i % 997 < 2 ? 6.0f : 0.0f);
  }
  ASSERT_TRUE(device.Upload(0, std::as_bytes(std::span(logits))).ok());

  auto stream = client::CudaStream::Create(index(), {.rows = kRows, .vocabulary = kVocabulary, .edits = 300, .top = 5});
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::vector<std::unique_ptr<client::LocalSequence>> on_host;
  for (uint32_t row = 0; row < kRows; ++row) {
    on_host.push_back(*client::LocalSequence::Open(MakeOptions(row, kVocabulary)));
    ASSERT_TRUE((*stream)->Put(row, *client::LocalSequence::Open(MakeOptions(row, kVocabulary))).ok());
  }
  std::vector<uint32_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  std::deque<client::CudaStream::Ticket> tickets;
  uint32_t awaited = 0;
  const auto await = [&] {
    const auto results = (*stream)->Await(tickets.front());
    tickets.pop_front();
    ASSERT_TRUE(results.ok()) << results.status();
    for (uint32_t row = 0; row < kRows; ++row) {
      const float* const of_row = &logits[kVocabulary * (kRows * (awaited % kDistributions) + row)];
      const std::string expected = TextOf(on_host[row]->Step(v1::DTYPE_F32, {.logits = of_row}));
      ASSERT_TRUE((*results)[row].has_value());
      ASSERT_EQ(TextOf(*(*results)[row]), expected) << "step " << awaited << ", row " << row;
    }
    ++awaited;
  };
  const auto steps = uint32_t(std::max<uint64_t>(10, testing::Scaled(200)));
  for (uint32_t step = 0; step < steps; ++step) {
    client::StreamStep one;
    one.logits = device.at(kRowBytes * kRows * (step % kDistributions));
    one.row_bytes = kRowBytes;
    one.dtype = v1::DTYPE_F32;
    one.rows = all;
    const auto queued = (*stream)->Step(one, device.stream());
    ASSERT_TRUE(queued.ok()) << queued.status();
    tickets.push_back(queued->ticket);
    if (tickets.size() > kLate) await();
    if (HasFatalFailure()) return;
  }
  while (!tickets.empty() && !HasFatalFailure()) await();
}

TEST_F(Gpu, CompactRowsAreThoseOfTheProcessor) {
  for (const uint32_t vocabulary : {3'000u, 128'256u}) {
    const uint64_t row_bytes = (2 * uint64_t{vocabulary} + 15) / 16 * 16;
    OnDevice device(*api_, *hardware_);
    ASSERT_TRUE(device.Open(row_bytes * kRows).ok());
    std::vector<std::unique_ptr<kernels::RandomRow>> rows;
    std::vector<kernels::RowParameters> parameters;
    for (uint64_t seed = 1; rows.size() < kRows; ++seed) {
      auto row = std::make_unique<kernels::RandomRow>(seed, vocabulary, kernels::OptionsKind::kPlain);
      const kernels::RowRequest& request = row->request();
      if (request.dtype != kernels::DType::kBF16 || request.live_vocabulary != vocabulary) continue;
      ASSERT_TRUE(device.Upload(row_bytes * rows.size(), row->tensor()).ok());
      parameters.push_back(*request.parameters);
      rows.push_back(std::move(row));
    }
    std::unique_ptr<CudaProducer> producer;
    const Status made = CudaProducer::Create(index(), {.rows = kRows, .vocabulary = vocabulary}, &producer);
    ASSERT_TRUE(made.ok()) << made.message;
    const CudaLogits logits = {.logits = device.at(0), .row_bytes = row_bytes, .rows = kRows, .vocabulary = vocabulary};
    kernels::cpu::Scratch scratch;
    for (const bool sums : {false, true}) {
      const Status queued = producer->State(device.stream(), logits, parameters, sums);
      ASSERT_TRUE(queued.ok()) << queued.message;
      ASSERT_TRUE(device.Wait().ok());
      for (uint32_t i = 0; i < kRows; ++i) {
        kernels::RowRequest request = rows[i]->request();
        request.parameters = &parameters[i];
        kernels::StatedRow expected;
        kernels::StatedRow stated;
        const bool is_stated = kernels::cpu::StateRow(request, {.unit_sum = sums, .sum = sums}, &scratch, &expected);
        bool fails = false;
        ASSERT_TRUE(producer->Take(i, &stated, &fails).ok());
        ASSERT_EQ(fails, !is_stated) << rows[i]->description();
        EXPECT_TRUE(fails || stated == expected) << rows[i]->description();
      }
    }
  }
}

TEST_F(Gpu, TextsEqualThoseOfTheCpu) {
  auto device = devices::CudaDevice::Start(*api_, *hardware_, {.max_batch_rows = 2});
  ASSERT_TRUE(device.ok()) << device.status();
  testing::CompareTexts(*std::move(device), std::max<uint64_t>(testing::Scaled(2'000), 50));
}

}  // namespace
}  // namespace sortition::gpu_test
