// Compact rows beside whole ones: bytes, time of a step over TCP, rows of a server's core, refusals, producing.
//
//   bench_compact [--json FILE] [--rounds N] [--client_core N] [--server_core N]
//
// Rows are of 128256 bf16, with temperature 0.8, top-k 50, top-p 0.95, min-p 0.05 and a repetition penalty over a
// history of 2,000 tokens. The client's end and the server's have a core each, and the server one kernel thread. Ratios
// are of medians; contenders take turns input by input.
//
// bytes_K: bytes of a whole row; the baseline is the bytes that it adds to a step in compact form with K first tokens.
// step_tcp_N: a step of N whole rows within the stream, over TCP; the baseline is the same step of compact rows of 256
// tokens, the work of producing them included. step_tcp_N_K: the same for K first tokens. server_rows_core: compact
// rows that a second of the server's processor time answers, in steps of 64; the baseline is whole rows. read_tcp_N: a
// step of N whole rows; the baseline is a plain pass for the largest number over these rows, as the client finds them.
// Every producer reads its rows, so no ratio of step_tcp_N is above this one. produce: the time to state 256 tokens of
// a row that lies in the second-level cache; the baseline is a plain pass for the largest of bf16 numbers.
// produce_sums: the same with both sums. decide: the time in which the law's reference decides such a row, with the
// penalties; the baseline is the server's kernel. decide_described: the same with a mask, raw logprobs and the kept
// set. decide_chain, decide_score, decide_draft: the same for a chain whose filters keep 4 tokens at least, for a given
// token's logprob, and for a draft that is tested.
//
// refused_K: the share of rows that K first tokens do not decide, without sums, in percent. Half of them are the
// demonstration's model on its own texts, half have a Zipf-like head; temperatures are 0.5 to 1.2.
#include <bit>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/bench/logits.h"
#include "client/cpp/compact_rows.h"
#include "client/demo/language_model.h"
#include "kernels/check.h"
#include "kernels/cpu/compact/decide_row.h"
#include "kernels/cpu/compact/state_row.h"
#include "kernels/law/compact.h"
#include "kernels/law/parameters.h"
#include "sortition/client.h"
#include "tests/bench/cpu/baselines.h"
#include "tests/bench/model.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"

ABSL_FLAG(uint32_t, rounds, 10, "rounds over all inputs");
ABSL_FLAG(int, client_core, 0, "core of the client");
ABSL_FLAG(int, server_core, 1, "core of the server");

namespace sortition::bench {
namespace {

using client::RowFormOptions;

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kRows = 64;
constexpr uint32_t kHistory = 2000;
constexpr uint32_t kCount = 256;
constexpr uint32_t kCounts[] = {64, 128, 256, 512, 1024};

kernels::RowParameters Compiled(double temperature) {
  kernels::RowParameters compiled;
  law::Compile({.temperature = static_cast<float>(temperature),
                .top_k = 50,
                .top_p = 0.95f,
                .min_p = 0.05f,
                .repetition_penalty = 1.1f},
               &compiled);
  return compiled;
}

// The repetition penalty's edits of a history.
std::vector<kernels::LogitEdit> EditsOf(std::vector<uint32_t> history) {
  std::ranges::sort(history);
  history.erase(std::unique(history.begin(), history.end()), history.end());
  std::vector<kernels::LogitEdit> edits;
  for (const uint32_t token : history) edits.push_back({token, kernels::LogitEdit::kRepeated, 0, 0});
  return edits;
}

std::vector<uint32_t> SomeHistory(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> history(kHistory);
  for (uint32_t& token : history) token = static_cast<uint32_t>(random() % kVocabulary);
  return history;
}

kernels::RowRequest MakeRequest(const std::byte* logits, uint32_t vocabulary, const kernels::RowParameters& parameters,
                                std::span<const kernels::LogitEdit> edits) {
  kernels::RowRequest request;
  request.logits = logits;
  request.dtype = kernels::DType::kBF16;
  request.live_vocabulary = vocabulary;
  request.parameters = &parameters;
  request.noise = {1, kHistory, 0};
  request.edits = edits;
  return request;
}

// A client with its sequences, whose rows travel in one form.
class Worker {
 public:
  Worker(const std::string& target, RowFormOptions rows) {
    client::ClientOptions options;
    options.targets = {target};
    options.transport.kind = client::TransportKind::kGrpc;
    options.transport.shared_memory_bytes = 0;
    options.rows = rows;
    client_ = Connect(std::move(options));
    v1::SamplingParameters parameters = ModelParameters();
    parameters.set_repetition_penalty(1.1f);
    sequences_ = OpenSequences(client_.get(), "bench", kRows, kVocabulary, parameters,
                               [](size_t i, client::SequenceOptions* options) { options->prompt = SomeHistory(i); });
  }

  void Step(const Logits& logits, size_t first, size_t count) {
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t i = 0; i < count; ++i) batch.rows.push_back({sequences_[i].get(), logits.row(first + i)});
    StepAll(client_.get(), batch);
  }

 private:
  std::unique_ptr<client::Client> client_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
};

class CompactBench {
 public:
  int Run() {
    Bytes();
    Steps();
    Kernels();
    Refusals();
    return Publish(report_);
  }

 private:
  double ServerSeconds() const { return CpuSeconds(server_->process().pid()); }

  void Bytes() {
    for (const uint32_t count : kCounts) {
      const auto position =
          client::CompactPosition::Of({logits_.row(0), v1::DTYPE_BF16, kVocabulary}, Compiled(0.8), {count, false});
      SORTITION_CHECK(position.has_value());
      std::string pairs;
      v1::StepRow row;
      position->AppendTo(&pairs, row.add_compact());
      report_.Add({absl::StrCat("bytes_", count), static_cast<double>(logits_.row_bytes()), "bytes",
                   static_cast<double>(pairs.size() + row.ByteSizeLong())});
    }
  }

  void Steps() {
    Worker whole(server_->address(), {RowFormOptions::Form::kFull});
    std::vector<std::unique_ptr<Worker>> compact;
    for (const uint32_t count : kCounts) {
      compact.push_back(
          std::make_unique<Worker>(server_->address(), RowFormOptions{RowFormOptions::Form::kCompact, count}));
    }
    for (const size_t rows : {size_t{1}, kRows}) {
      double seconds[2] = {};
      double steps[2] = {};
      std::vector<Contender> contenders = {{"whole", [&](size_t input) {
                                              const double before = ServerSeconds();
                                              whole.Step(logits_, input * rows, rows);
                                              seconds[0] += ServerSeconds() - before;
                                              ++steps[0];
                                            }}};
      for (size_t i = 0; i < compact.size(); ++i) {
        contenders.push_back({absl::StrCat("compact_", kCounts[i]), [&, i](size_t input) {
                                const double before = ServerSeconds();
                                compact[i]->Step(logits_, input * rows, rows);
                                if (kCounts[i] != kCount) return;
                                seconds[1] += ServerSeconds() - before;
                                ++steps[1];
                              }});
      }
      contenders.push_back({"read", [&](size_t input) {
                              for (size_t row = input * rows; row < (input + 1) * rows; ++row) {
                                MaxPassBf16(reinterpret_cast<const int16_t*>(logits_.row(row)), kVocabulary);
                              }
                            }});
      const size_t inputs = logits_.count() / rows;
      const size_t rounds = std::max<size_t>(absl::GetFlag(FLAGS_rounds) * rows / 8, 2);
      const auto medians = MeasureInterleaved(
          contenders, {.inputs = inputs, .rounds = rounds, .prepare = {}, .stride = 0, .in_a_row = 4});
      for (size_t i = 0; i < compact.size(); ++i) {
        if (kCounts[i] == kCount) report_.Add({absl::StrCat("step_tcp_", rows), medians[0], "us", medians[i + 1]});
        report_.Add({absl::StrCat("step_tcp_", rows, "_", kCounts[i]), medians[0], "us", medians[i + 1]});
      }
      report_.Add({absl::StrCat("read_tcp_", rows), medians[0], "us", medians.back()});
      if (rows == 1) continue;
      const auto rows_a_second = [&](size_t i) { return steps[i] * static_cast<double>(rows) / seconds[i]; };
      report_.Add({"server_rows_core", rows_a_second(1), "rows/s", rows_a_second(0)});
    }
  }

  void Kernels() {
    const kernels::RowParameters parameters = Compiled(0.8);
    kernels::cpu::Scratch scratch;
    kernels::StatedRow stated;
    const auto state = [&](size_t input, bool sums) {
      const auto request = MakeRequest(logits_.row(input), kVocabulary, parameters, {});
      SORTITION_CHECK(kernels::cpu::StateRow(request, {kCount, {}, sums, sums}, &scratch, &stated));
    };
    std::vector<Contender> contenders = {
        {"max", [&](size_t i) { MaxPassBf16(reinterpret_cast<const int16_t*>(logits_.row(i)), kVocabulary); }},
        {"produce", [&](size_t i) { state(i, false); }},
        {"produce_sums", [&](size_t i) { state(i, true); }}};
    const std::vector<Decided> all = DecidedRows();
    for (const Decided& decided : all) {
      contenders.push_back({decided.name + "_reference", [&](size_t i) {
                              const auto request = decided.Request();
                              SORTITION_CHECK(law::SampleCompactRowReference(request, stated_[i].row()).index() == 0);
                            }});
      contenders.push_back({decided.name, [&](size_t i) {
                              const auto request = decided.Request();
                              const auto row = stated_[i].row();
                              SORTITION_CHECK(kernels::cpu::DecideRow(request, row, false, &scratch).index() == 0);
                            }});
    }
    const auto medians = MeasureInterleaved(
        contenders,
        {.inputs = kRows,
         .rounds = absl::GetFlag(FLAGS_rounds) * 4,
         .prepare =
             [&](size_t input) {
               Warm(logits_, input);
               while (stated_.size() <= input) {
                 const auto request = MakeRequest(logits_.row(stated_.size()), kVocabulary, parameters, {});
                 SORTITION_CHECK(kernels::cpu::StateRow(request, {kCount, {}, true, false}, &scratch, &stated));
                 stated_.push_back(stated);
               }
             },
         .stride = 0});
    report_.Add({"produce", medians[1], "us", medians[0]});
    report_.Add({"produce_sums", medians[2], "us", medians[0]});
    for (size_t i = 0; i < all.size(); ++i) {
      report_.Add({all[i].name, medians[3 + 2 * i], "us", medians[4 + 2 * i]});
    }
  }

  // A kind of row that the server decides, with the penalties of a history.
  struct Decided {
    std::string name;
    kernels::RowParameters parameters = {};
    bool has_mask = false;
    kernels::RowTask task = kernels::RowTask::kDraw;
    std::vector<kernels::LogitEdit> edits = EditsOf(SomeHistory(1));
    std::vector<uint32_t> allowed_bits = std::vector<uint32_t>((kVocabulary + 31) / 32, 0xfffffffeu);

    kernels::RowRequest Request() const {
      kernels::RowRequest request = MakeRequest(nullptr, kVocabulary, parameters, edits);
      if (has_mask) request.allowed_bits = allowed_bits.data();
      request.task = task;
      request.given = 5;
      return request;
    }
  };

  static std::vector<Decided> DecidedRows() {
    std::vector<Decided> rows = {{"decide", Compiled(0.8)}, {"decide_described", Compiled(0.8), true}};
    rows[1].parameters.raw_logprob = rows[1].parameters.kept_tokens = true;
    rows[1].parameters.raw_top = 5;
    rows.emplace_back().name = "decide_chain";
    law::Compile(
        {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .min_p = 0.05f, .repetition_penalty = 1.1f, .min_keep = 4},
        &rows.back().parameters);
    rows.push_back({"decide_score", Compiled(0.8), false, kernels::RowTask::kScore});
    rows.back().parameters.processed_logprob = true;
    rows.push_back({"decide_draft", Compiled(0.8), false, kernels::RowTask::kVerify});
    return rows;
  }

  // Adds 1 to `*refused` for each of kCounts that does not decide the row.
  void Count(const std::byte* logits, uint32_t vocabulary, double temperature, const std::vector<uint32_t>& history,
             std::vector<uint32_t>* refused) {
    const kernels::RowParameters parameters = Compiled(temperature);
    const auto edits = EditsOf(history);
    const auto request = MakeRequest(logits, vocabulary, parameters, edits);
    kernels::StatedRow stated;
    for (size_t i = 0; i < std::size(kCounts); ++i) {
      SORTITION_CHECK(kernels::cpu::StateRow(request, {kCounts[i]}, &scratch_, &stated));
      (*refused)[i] += law::SampleCompactRowReference(request, stated.row()).index() != 0;
    }
  }

  void Refusals() {
    const demo::LanguageModel model(demo::Tales());
    std::vector<uint32_t> refused(std::size(kCounts));
    uint32_t rows = 0;
    for (const double temperature : {0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2}) {
      for (const std::string_view tale : demo::Tales()) {
        const std::vector<uint32_t> text = model.Encode(tale);
        for (size_t at = 50; at < text.size() && at < kHistory; at += 40, ++rows) {
          const std::vector<uint32_t> history(text.begin(), text.begin() + static_cast<ptrdiff_t>(at));
          std::vector<uint16_t> row;
          for (const float logit : model.Logits(history)) row.push_back(uint16_t(std::bit_cast<uint32_t>(logit) >> 16));
          Count(reinterpret_cast<const std::byte*>(row.data()), model.size(), temperature, history, &refused);
        }
      }
    }
    const uint32_t of_model = rows;
    for (const double temperature : {0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2}) {
      for (uint32_t i = 0; i < of_model / 8; ++i, ++rows) {
        Count(logits_.row(i % logits_.count()), kVocabulary, temperature, SomeHistory(i), &refused);
      }
    }
    for (size_t i = 0; i < std::size(kCounts); ++i) {
      report_.Add({absl::StrCat("refused_", kCounts[i]), 100.0 * refused[i] / rows, "%", std::nullopt});
    }
  }

  const Logits logits_{Shape::kPeaked, kernels::DType::kBF16, 2 * kRows, kVocabulary};
  const std::unique_ptr<process::ServerProcess> server_ =
      StartServer({"--cpu_threads=1", "--log_level=warning"}, absl::GetFlag(FLAGS_server_core));
  kernels::cpu::Scratch scratch_;
  std::vector<kernels::StatedRow> stated_;
  Report report_{"compact", MachineName()};
};

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  sortition::bench::RunOnCore(absl::GetFlag(FLAGS_client_core));
  return sortition::bench::CompactBench().Run();
}
