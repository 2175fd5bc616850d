// Workers as in a deployment: each is a client with sequences that it steps until time is up, in one thread. Prints the
// results as one line of JSON.
//
//   scale_worker --targets=A,B [--workers N] [--sequences N] [--vocabulary V] [--heavy] [--check] [--patient]
//                [--pause TIME] [--tls_folder FOLDER --tls_server_name NAME]
//
// Every second sequence keeps a history. --heavy asks for an expensive option, top-p without top-k over flat
// rows. --check draws every token a second time in process and counts those that differ.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/bench/logits.h"
#include "sortition/client.h"
#include "sortition/in_process.h"

using Texts = std::vector<std::string>;

ABSL_FLAG(Texts, targets, {}, "servers, by commas; each worker begins with another one");
ABSL_FLAG(uint32_t, workers, 1, "workers");
ABSL_FLAG(uint32_t, sequences, 8, "sequences of a worker, all in each step");
ABSL_FLAG(uint32_t, vocabulary, 4096, "elements of a row");
ABSL_FLAG(bool, heavy, false, "ask for what costs most");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(30), "of a step");
ABSL_FLAG(bool, patient, false, "step again what failed at its deadline");
ABSL_FLAG(bool, check, false, "draw every token in process, too");
ABSL_FLAG(absl::Duration, pause, absl::ZeroDuration(), "between two steps");

ABSL_FLAG(std::string, tls_folder, "", "of ca.crt, tls.crt and tls.key; empty: plain text");
ABSL_FLAG(std::string, tls_server_name, "", "expected in the server's certificate");

namespace sortition::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Found {
  uint64_t tokens = 0;
  uint64_t failed = 0;
  uint64_t different = 0;
  std::vector<double> step_ms;
  std::string first_error;
};

template <typename T>
T OrExit(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "scale_worker: %s\n", result.status().ToString().c_str());
  std::exit(1);
}

// The client of one worker, and its sequences.
struct Sampler {
  std::unique_ptr<client::Client> client;
  std::vector<std::unique_ptr<client::Sequence>> sequences;

  Sampler(absl::StatusOr<std::unique_ptr<client::Client>> connected, uint32_t worker) {
    client = OrExit(std::move(connected));
    for (uint32_t i = 0; i < absl::GetFlag(FLAGS_sequences); ++i) {
      client::SequenceOptions options;
      options.request_id = absl::StrCat(worker, "-", i);
      options.vocabulary_size = absl::GetFlag(FLAGS_vocabulary);
      options.seed = 1000 * worker + i;
      options.prompt = {1, 2, 3};
      options.parameters.set_temperature(0.9f);
      options.parameters.set_top_p(0.95f);
      if (!absl::GetFlag(FLAGS_heavy)) options.parameters.set_top_k(40);
      if (i % 2 == 1) options.parameters.set_repetition_penalty(1.1f);
      sequences.push_back(OrExit(client->Open(std::move(options))));
    }
  }

  std::vector<client::RowResult> Step(const bench::Logits& pool, uint64_t step) {
    client::Batch batch{v1::DTYPE_BF16, pool.vocabulary(), {}};
    for (size_t i = 0; i < sequences.size(); ++i) {
      batch.rows.push_back({sequences[i].get(), pool.row((step + i) % pool.count())});
    }
    std::vector<client::RowResult> outcomes = OrExit(client->Step(batch));
    while (absl::GetFlag(FLAGS_patient) && StepLate(batch, &outcomes)) {
    }
    return outcomes;
  }

 private:
  // Steps the rows again that failed at their deadline; false if there are none.
  bool StepLate(const client::Batch& batch, std::vector<client::RowResult>* outcomes) {
    client::Batch late{batch.dtype, batch.vocabulary_size, {}};
    std::vector<size_t> indexes;
    for (size_t i = 0; i < outcomes->size(); ++i) {
      const auto* error = std::get_if<client::RowError>(&(*outcomes)[i]);
      if (error == nullptr || error->reason != v1::DEADLINE_PASSED) continue;
      late.rows.push_back(batch.rows[i]);
      indexes.push_back(i);
    }
    if (indexes.empty()) return false;
    std::vector<client::RowResult> again = OrExit(client->Step(late));
    for (size_t i = 0; i < indexes.size(); ++i) (*outcomes)[indexes[i]] = std::move(again[i]);
    return true;
  }
};

std::string ReadTlsFile(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(absl::GetFlag(FLAGS_tls_folder) + "/" + name).rdbuf();
  return text.str();
}

Sampler Connect(uint32_t worker) {
  client::ClientOptions options;
  if (!absl::GetFlag(FLAGS_tls_folder).empty()) {
    options.transport.tls = {ReadTlsFile("ca.crt"), ReadTlsFile("tls.crt"), ReadTlsFile("tls.key"),
                             absl::GetFlag(FLAGS_tls_server_name)};
  }
  options.targets = absl::GetFlag(FLAGS_targets);
  std::rotate(options.targets.begin(), options.targets.begin() + worker % options.targets.size(),
              options.targets.end());
  // A lost server is found again within a test's time.
  options.retry.backoff.max = absl::Milliseconds(200);
  options.retry.connect_timeout = absl::Seconds(2);
  options.default_timeout = absl::GetFlag(FLAGS_timeout);
  options.rows.form = client::RowFormOptions::Form::kFull;  // devices carry the load
  return Sampler(client::Client::Connect(std::move(options)), worker);
}

void Work(uint32_t worker, const bench::Logits& pool, const std::atomic<bool>& stop, Found* found) {
  Sampler sampler = Connect(worker);
  std::unique_ptr<Sampler> again;
  if (absl::GetFlag(FLAGS_check)) {
    client::ClientOptions options;
    options.in_process = client::InProcessEngine(1);
    again = std::make_unique<Sampler>(client::Client::Connect(std::move(options)), worker);
  }
  for (uint64_t step = 0; !stop.load(std::memory_order_relaxed); ++step) {
    const Clock::time_point start = Clock::now();
    const auto outcomes = sampler.Step(pool, step);
    found->step_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    for (const client::RowResult& outcome : outcomes) {
      if (const auto* error = std::get_if<client::RowError>(&outcome)) {
        ++found->failed;
        if (found->first_error.empty()) found->first_error = error->message;
      } else {
        ++found->tokens;
      }
    }
    absl::SleepFor(absl::GetFlag(FLAGS_pause));
    if (again == nullptr || found->failed > 0) continue;
    const auto expected = again->Step(pool, step);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const auto& token = std::get<v1::DrawResult>(outcomes[i]);
      if (token.token() != std::get<v1::DrawResult>(expected[i]).token()) ++found->different;
    }
  }
}

double Percentile(const std::vector<double>& sorted, size_t percent) {
  return sorted.empty() ? 0 : sorted[std::min(sorted.size() - 1, sorted.size() * percent / 100)];
}

int Main() {
  const bench::Logits pool(absl::GetFlag(FLAGS_heavy) ? bench::Shape::kFlat : bench::Shape::kPeaked,
                           kernels::DType::kBF16, 64, absl::GetFlag(FLAGS_vocabulary));
  std::vector<Found> found(absl::GetFlag(FLAGS_workers));
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < found.size(); ++i) threads.emplace_back([&, i] { Work(i, pool, stop, &found[i]); });
  while (std::getchar() != EOF) {
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();

  Found all;
  std::vector<double> slowest_ms;  // by worker
  for (Found& one : found) {
    slowest_ms.push_back(one.step_ms.empty() ? 0 : *std::max_element(one.step_ms.begin(), one.step_ms.end()));
    all.tokens += one.tokens;
    all.failed += one.failed;
    all.different += one.different;
    all.step_ms.insert(all.step_ms.end(), one.step_ms.begin(), one.step_ms.end());
    if (all.first_error.empty()) all.first_error = one.first_error;
  }
  std::sort(all.step_ms.begin(), all.step_ms.end());
  std::printf(
      "{\"tokens\":%llu,\"failed\":%llu,\"different\":%llu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"slowest_ms\":[%s]}\n",
      static_cast<unsigned long long>(all.tokens), static_cast<unsigned long long>(all.failed),
      static_cast<unsigned long long>(all.different), Percentile(all.step_ms, 50), Percentile(all.step_ms, 99),
      absl::StrJoin(slowest_ms, ",").c_str());
  if (!all.first_error.empty()) std::fprintf(stderr, "scale_worker: %s\n", all.first_error.c_str());
  return all.failed == 0 && all.different == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sortition::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::testing::Main();
}
