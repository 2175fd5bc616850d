// Receipts, places in the race and the verifier.
//
//   bench_verify [--json FILE] [--rounds N] [--client_core N] [--server_core N]
//
// Rows are of 128256 bf16, with temperature 0.8 and top-k 8. The client's end and the server's have a core each, and
// the server one kernel thread. Ratios are of medians; contenders take turns input by input.
//
// step_ring_16_receipts: a step of 16 rows over a ring, with a receipt for each; the baseline is the same step without.
// step_ring_16_files: the same where the server alone writes receipts to files. server_16_receipts: the processor time
// of the server alone for such a step, with a ring that sleeps; the baseline is the step without. Other work on the
// machine changes it least. bytes_per_token: of the worker's records. verify_rate: tokens that a second of processor
// time checks, signatures, chains and draws together.
// score_race: a score of 64 tokens with their places in the race; the baseline is the score alone.
// score_race_unfiltered: the same where every token is kept; the token scored is a rare one, always the same.
// score_race_drawn: the same for the tokens that are drawn from these rows.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "client/receipts/receipt_check.h"
#include "kernels/check.h"
#include "service/receipt/receipt_key.h"
#include "tests/bench/model.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"

ABSL_FLAG(uint32_t, rounds, 60, "rounds over all inputs");
ABSL_FLAG(int, client_core, 0, "core of the client");
ABSL_FLAG(int, server_core, 1, "core of the server");

namespace sortition::bench {
namespace {

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kRows = 16;
constexpr size_t kInputs = 4;
constexpr size_t kScored = 64;

v1::SamplingParameters Parameters(uint32_t top_k) {
  v1::SamplingParameters parameters;
  parameters.set_temperature(0.8f);
  parameters.set_top_k(top_k);
  return parameters;
}

// A client over a ring with its sequences.
class Worker {
 public:
  Worker(const std::string& target, const Logits& logits, uint32_t top_k, bool has_receipts) {
    client::ClientOptions options;
    options.targets = {target};
    options.transport.kind = client::TransportKind::kRing;
    client_ = Connect(std::move(options));
    v1::SamplingParameters parameters = Parameters(top_k);
    parameters.mutable_processed_logprobs();
    sequences_ = OpenSequences(client_.get(), "bench", kRows, kVocabulary, parameters,
                               [&](size_t, client::SequenceOptions* sequence) {
                                 if (!has_receipts) return;
                                 sequence->receipts = logs_.emplace_back(std::make_shared<client::ReceiptLog>());
                               });
    rows_ = Place(logits, client_.get());
    stride_ = logits.row_bytes();
  }

  void Step(size_t input) {
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t i = 0; i < kRows; ++i) {
      batch.rows.push_back({sequences_[i].get(), rows_.data.get() + (input * kRows + i) * stride_});
    }
    Run(batch);
    tokens_ += kRows;
  }
  // Returns the tokens that sequence 0 draws from the first rows, one after the other. Call it once.
  std::vector<uint32_t> DrawScored() {
    const auto opened = OpenSequences(client_.get(), "drawn", 1, kVocabulary, Parameters(0));
    std::vector<uint32_t> tokens;
    for (size_t i = 0; i < kScored; ++i) {
      client::Batch batch{v1::DTYPE_BF16, kVocabulary, {{opened[0].get(), rows_.data.get() + i * stride_}}};
      const auto results = client_->Step(batch);
      SORTITION_CHECK(results.ok());
      tokens.push_back(std::get<v1::DrawResult>(results->front()).token());
    }
    return tokens;
  }
  void Score(const std::vector<uint32_t>& tokens, bool with_race) {
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    client::Row& row = batch.rows.emplace_back();
    row.sequence = sequences_[0].get();
    row.logits = rows_.data.get();
    row.scored = tokens;
    row.score_race = with_race;
    Run(batch);
  }

  // Ends the sequences. Returns all their records.
  std::string TakeReceipts(std::vector<client::SeedOpening>* seeds) {
    sequences_.clear();
    std::string records;
    for (const auto& log : logs_) {
      SORTITION_CHECK(log->AwaitEnd(absl::Seconds(10)));
      records += log->Take();
      const auto line = client::ParseSeeds(log->SeedLine());
      SORTITION_CHECK(line.ok());
      seeds->push_back(line->front());
    }
    return records;
  }
  uint64_t tokens() const { return tokens_; }

 private:
  void Run(const client::Batch& batch) {
    const auto results = client_->Step(batch);
    SORTITION_CHECK(results.ok());
    for (const auto& result : *results) SORTITION_CHECK(!std::holds_alternative<client::RowError>(result));
  }

  std::unique_ptr<client::Client> client_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
  std::vector<std::shared_ptr<client::ReceiptLog>> logs_;
  client::Client::RowMemory rows_;
  size_t stride_ = 0;
  uint64_t tokens_ = 0;
};

class Suite {
 public:
  Suite() : report_("verify", MachineName()) {
    std::string folder = (std::filesystem::temp_directory_path() / "bench_verifyXXXXXX").string();
    SORTITION_CHECK(::mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    SORTITION_CHECK(service::WriteNewKey(folder_ + "/key").ok());
    asked_ = Start("asked", {"--receipt_key=" + folder_ + "/key"});
    sleepy_ = Start("sleepy", {"--receipt_key=" + folder_ + "/key", "--ring_spin=0"});
    files_ = Start("files", {"--receipt_key=" + folder_ + "/key", "--receipt_folder=" + folder_, "--receipt_all"});
  }
  ~Suite() {
    asked_.reset();
    sleepy_.reset();
    files_.reset();
    std::filesystem::remove_all(folder_);
  }

  int Run() {
    const OnCore core(absl::GetFlag(FLAGS_client_core));
    const Logits logits(Shape::kPeaked, kernels::DType::kBF16, kRows * kInputs + kScored, kVocabulary);
    Worker plain(Target("asked"), logits, 8, false), receipts(Target("asked"), logits, 8, true);
    Worker files(Target("files"), logits, 8, false);
    Worker filtered(Target("asked"), logits, 50, false), unfiltered(Target("asked"), logits, 0, false);
    const auto step = [](Worker* worker) { return [worker](size_t input) { worker->Step(input); }; };
    const uint32_t rounds = absl::GetFlag(FLAGS_rounds);
    const auto steps =
        MeasureInterleaved({{"plain", step(&plain)}, {"receipts", step(&receipts)}, {"files", step(&files)}},
                           {.inputs = kInputs, .rounds = rounds * 4, .prepare = {}, .in_a_row = 16});
    report_.Add({"step_ring_16_receipts", steps[1], "us", steps[0]});
    report_.Add({"step_ring_16_files", steps[2], "us", steps[0]});

    MeasureServer(logits);

    const std::vector<uint32_t> rare(kScored, 77);
    const std::vector<uint32_t> drawn = unfiltered.DrawScored();
    const auto score = [](Worker* worker, const std::vector<uint32_t>& tokens, bool race) {
      return [worker, &tokens, race](size_t) { worker->Score(tokens, race); };
    };
    const auto scores = MeasureInterleaved({{"score", score(&filtered, rare, false)},
                                            {"score_race", score(&filtered, rare, true)},
                                            {"unfiltered", score(&unfiltered, rare, false)},
                                            {"unfiltered_race", score(&unfiltered, rare, true)},
                                            {"drawn", score(&unfiltered, drawn, false)},
                                            {"drawn_race", score(&unfiltered, drawn, true)}},
                                           {.inputs = kInputs, .rounds = rounds, .prepare = {}});
    report_.Add({"score_race", scores[1], "us", scores[0]});
    report_.Add({"score_race_unfiltered", scores[3], "us", scores[2]});
    report_.Add({"score_race_drawn", scores[5], "us", scores[4]});

    std::vector<client::SeedOpening> seeds;
    const uint64_t tokens = receipts.tokens();
    const std::string records = receipts.TakeReceipts(&seeds);
    report_.Add({"bytes_per_token", static_cast<double>(records.size()) / static_cast<double>(tokens), "B", {}});
    client::ReceiptCheck check({{}, seeds});
    const double start = Seconds(CLOCK_THREAD_CPUTIME_ID);
    for (size_t begin = 0; begin < records.size(); begin += 1 << 20) {
      check.Read(std::string_view(records).substr(begin, 1 << 20));
    }
    check.Finish();
    const double seconds = Seconds(CLOCK_THREAD_CPUTIME_ID) - start;
    SORTITION_CHECK(check.problems().empty() && check.counts().drawn == tokens);
    SORTITION_CHECK(check.counts().signed_receipts == tokens);
    report_.Add({"verify_rate", static_cast<double>(tokens) / seconds, "tokens/s", {}});
    return Publish(report_);
  }

 private:
  // Adds the server's processor time of a step. Steps with and without receipts take turns.
  void MeasureServer(const Logits& logits) {
    constexpr int kTurns = 40;
    constexpr int kSteps = 25;
    Worker plain(Target("sleepy"), logits, 8, false), receipts(Target("sleepy"), logits, 8, true);
    const pid_t server = sleepy_->process().pid();
    double seconds[2] = {};
    for (int turn = -2; turn < kTurns; ++turn) {
      for (Worker* worker : {&plain, &receipts}) {
        const double start = CpuSeconds(server);
        for (int i = 0; i < kSteps; ++i) worker->Step(static_cast<size_t>(i) % kInputs);
        if (turn >= 0) seconds[worker == &receipts] += CpuSeconds(server) - start;
      }
    }
    constexpr double kMicroseconds = 1e6 / (kTurns * kSteps);
    report_.Add({"server_16_receipts", seconds[1] * kMicroseconds, "us", seconds[0] * kMicroseconds});
  }
  std::string Target(const std::string& name) const { return "unix:" + folder_ + "/" + name; }
  std::unique_ptr<process::ServerProcess> Start(const std::string& name, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--log_level=error", "--cpu_threads=1", "--memory_listen=" + Target(name)});
    return StartServer(flags, absl::GetFlag(FLAGS_server_core));
  }

  Report report_;
  std::string folder_;
  std::unique_ptr<process::ServerProcess> asked_, files_, sleepy_;
};

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Suite().Run();
}
