// Cost of a step without its kernel: finding the sequence's state current, advancing it, accounting for it.
//
//   bench_state [--json FILE]
//
// update_H: one step of a sequence with H tokens of history, 512 of them distinct; the baseline is update_100. bytes_H:
// bytes that the table counts for such a sequence. step_among_N: a step of a random one of N live sequences of 100
// tokens, so that its memory is cold; the baseline is update_100. bytes_among_N: bytes that the table counts for each
// of them; the baseline is the growth of the process. fork_100k: a fork at 100,000 tokens and its first step; the
// baseline is update_100. replay_100k: building the state from its history.
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/sequence/sequence_table.h"
#include "tests/bench/suite.h"

namespace sortition::bench {
namespace {

using service::Sequence;
using service::SequenceTable;
using service::Text;

constexpr uint32_t kDistinct = 512;
constexpr uint32_t kVocabulary = 128256;
constexpr service::SequenceOwner kOwner{1, 1};

std::shared_ptr<const service::SequenceSpec> Spec() {
  auto spec = std::make_shared<service::SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = kVocabulary;
  spec->repetition_penalty = 1.1f;
  spec->frequency_penalty = 0.2f;
  return spec;
}

service::Limits WideLimits() {
  service::Limits limits;
  limits.max_sequences = 4'000'000;
  limits.max_state_bytes = uint64_t{64} << 30;
  return limits;
}

uint32_t Token(std::mt19937& random) { return static_cast<uint32_t>(random() % kDistinct) * 251; }

uint64_t ResidentBytes() {
  uint64_t pages = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Live sequences in a table, each with its last answer's hash, as their workers have it.
class Sequences {
 public:
  explicit Sequences(uint32_t history) : history_(history) {}

  void Add(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      std::vector<uint32_t> tokens(history_);
      for (uint32_t& token : tokens) token = Token(random_);
      const auto spec = Spec();
      const service::SequenceKey key{"default", "worker", absl::StrCat("request-", entries_.size())};
      auto state = Text::Build(spec, tokens, history_ / 2, limits_.kept_history);
      auto opened = table_.Open(key, kOwner, spec, std::move(state));
      SORTITION_CHECK(std::holds_alternative<SequenceTable::Opened>(opened));
      auto& at = std::get<SequenceTable::Opened>(opened);
      entries_.push_back({key, at.sequence, at.at.history_hash, history_, 1});
    }
  }

  void Step(size_t index) {
    Entry& entry = entries_[index % entries_.size()];
    service::StepIntent intent;
    intent.step_id = entry.next_step++;
    intent.position = entry.position++;
    intent.history_hash = entry.hash;
    auto begun = entry.sequence->Begin(kOwner, intent);
    SORTITION_CHECK(std::holds_alternative<service::StepGrant>(begun));
    kernels::RowOutput answer;
    answer.token = Token(random_);
    auto committed = entry.sequence->Commit(std::get<service::StepGrant>(begun).ticket,
                                            service::RowResult::Drawn(std::move(answer)));
    SORTITION_CHECK(std::holds_alternative<service::RowResult>(committed));
    entry.hash = *std::get<service::RowResult>(committed).history_hash;
    table_.Touch(entry.key, entry.sequence.get());
  }

  // A fork of a sequence, and the child's first token.
  void Fork(size_t index) {
    Entry& entry = entries_[index % entries_.size()];
    service::Bill bill;
    auto forked = entry.sequence->Fork(kOwner, Spec(), std::nullopt, &bill);
    SORTITION_CHECK(std::holds_alternative<std::unique_ptr<Text>>(forked));
    std::get<std::unique_ptr<Text>>(forked)->Append(Token(random_));
  }

  double bytes_each() const { return static_cast<double>(table_.state_bytes()) / static_cast<double>(entries_.size()); }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    service::SequenceKey key;
    std::shared_ptr<Sequence> sequence;
    uint64_t hash;
    uint32_t position;
    uint64_t next_step;
  };

  const uint32_t history_;
  const service::Limits limits_ = WideLimits();
  service::SteadyClock clock_;
  service::NullObserver observer_;
  SequenceTable table_{limits_, &clock_, &observer_};
  std::mt19937 random_{1};
  std::vector<Entry> entries_;
};

Schedule Over(size_t inputs, size_t rounds) {
  Schedule schedule;
  schedule.inputs = inputs;
  schedule.rounds = rounds;
  return schedule;
}

int Run() {
  constexpr size_t kHot = 64;       // sequences of each length, the number that a worker steps at once
  constexpr size_t kCold = 50'000;  // of the live ones
  constexpr size_t kStepsARun = 4;  // so that the clock's own time does not count
  Report report("state", MachineName());

  struct Length {
    const char* name;
    uint32_t tokens;
  };
  const Length lengths[] = {{"100", 100}, {"10k", 10'000}, {"100k", 100'000}};
  std::vector<std::unique_ptr<Sequences>> hot;
  std::vector<Contender> contenders;
  for (const Length& length : lengths) {
    hot.push_back(std::make_unique<Sequences>(length.tokens));
    Sequences* sequences = hot.back().get();
    sequences->Add(kHot);
    contenders.push_back({absl::StrCat("update_", length.name), [sequences](size_t input) {
                            for (size_t i = 0; i < kStepsARun; ++i) sequences->Step(input * kStepsARun + i);
                          }});
  }
  std::vector<double> updates = MeasureInterleaved(contenders, Over(64, 20));
  for (double& update : updates) update /= kStepsARun;
  for (size_t i = 0; i < std::size(lengths); ++i) report.Add({contenders[i].name, updates[i], "us", updates[0]});
  for (size_t i = 0; i < std::size(lengths); ++i) {
    report.Add({absl::StrCat("bytes_", lengths[i].name), hot[i]->bytes_each(), "bytes", std::nullopt});
  }

  const Contender fork{"fork_100k", [&](size_t input) { hot.back()->Fork(input); }};
  report.Add({fork.name, MeasureInterleaved({fork}, Over(64, 10))[0], "us", updates[0]});

  std::mt19937 random(2);
  std::vector<uint32_t> history(100'000);
  for (uint32_t& token : history) token = Token(random);
  const Contender replay{"replay_100k", [&](size_t) { Text::Build(Spec(), history, 50'000, 4096); }};
  report.Add({replay.name, MeasureInterleaved({replay}, Over(1, 20))[0], "us", updates[0]});

  const uint64_t before = ResidentBytes();
  Sequences live(100);
  for (const uint32_t count : {100'000u, 1'000'000u}) {
    std::cerr << count << " live sequences\n";
    live.Add(count - static_cast<uint32_t>(live.size()));
    const double grown = static_cast<double>(ResidentBytes() - before) / static_cast<double>(count);
    // Too many to stay in a cache. Each has had a step, as live sequences have.
    std::vector<size_t> some(kCold);
    for (size_t& index : some) index = random() % live.size();
    for (size_t index : some) live.Step(index);
    size_t next = 0;
    const Contender step{absl::StrCat("step_among_", count), [&](size_t) { live.Step(some[next++ % kCold]); }};
    report.Add({step.name, MeasureInterleaved({step}, Over(1000, 20))[0], "us", updates[0]});
    report.Add({absl::StrCat("bytes_among_", count), live.bytes_each(), "bytes", grown});
  }
  return Publish(report);
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Run();
}
