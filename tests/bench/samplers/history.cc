// A step with an option has all of the option's costs: the look-up of the state, the row, the state's advance, and the
// search at the text's end.
#include "tests/bench/samplers/history.h"

#include <memory>
#include <random>
#include <vector>

#include "kernels/law/dry_terms.h"
#include "kernels/law/options.h"
#include "service/limits.h"
#include "service/text/text.h"
#include "tests/bench/samplers/sampling.h"

namespace sortition::bench {
namespace {

using service::SequenceSpec;
using service::Text;

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kRows = 64;

// Words by a power law, with passages that come again, as in code and in lists.
class RandomText {
 public:
  explicit RandomText(uint32_t seed) : random_(seed) {}
  uint32_t Next(const std::vector<uint32_t>& before) {
    if (quoted_ > 0) return --quoted_, before[before.size() - distance_];
    if (before.size() > 1000 && random_() % 60 == 0) {
      quoted_ = random_() % 200;
      distance_ = 300 + random_() % (before.size() - 600);
    }
    return static_cast<uint32_t>(random_() % (1 + random_() % (1 + random_() % kVocabulary)));
  }

 private:
  std::mt19937 random_;
  size_t quoted_ = 0;
  size_t distance_ = 0;
};

std::shared_ptr<SequenceSpec> Spec(uint32_t vocabulary = kVocabulary) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = vocabulary;
  return spec;
}

std::shared_ptr<SequenceSpec> DrySpec() {
  auto spec = Spec();
  service::DryOptions& dry = spec->history.dry;
  dry.multiplier = 0.8f;
  dry.base = float(law::NumberNamed("dry.base").value);
  dry.allowed_length = uint32_t(law::NumberNamed("dry.allowed_length").value);
  dry.terms = law::DryTerms(dry.multiplier, dry.base);
  return spec;
}

// The recommended stop, which is also the default.
std::shared_ptr<SequenceSpec> RepetitionSpec() {
  auto spec = Spec();
  spec->history.repetition_stop.repeats = 4;
  return spec;
}

// Phases with tags that no RandomText has: its tokens are smaller.
std::shared_ptr<SequenceSpec> PhasesSpec(uint32_t count) {
  auto spec = Spec(kVocabulary + count);
  for (uint32_t i = 0; i < count; ++i) {
    service::Phase& phase = spec->history.phases.emplace_back();
    phase.begin = {1, kVocabulary + i};
    phase.end = {2, kVocabulary + i};
    phase.max_tokens = 100;
    phase.then = phase.end;
    phase.options.frequency_penalty = 0;
  }
  return spec;
}

// Sequences of a given length whose text grows with every step.
class Texts {
 public:
  Texts(size_t count, uint32_t tokens, const std::shared_ptr<const SequenceSpec>& spec = DrySpec()) {
    for (size_t i = 0; i < count; ++i) {
      RandomText text(static_cast<uint32_t>(i));
      std::vector<uint32_t> history;
      while (history.size() < tokens + kAhead) history.push_back(text.Next(history));
      ahead_.emplace_back(history.begin() + tokens, history.end());
      history.resize(tokens);
      states_.push_back(Text::Build(spec, history, tokens / 2, /*kept_history=*/4096));
    }
  }
  void Step(size_t row, Sampling* token) {
    const size_t index = row % states_.size();
    Text& state = *states_[index];
    (*token)(row, *state.LendEdits());
    state.EndLoan();
    state.Append(ahead_[index][steps_++ / states_.size() % kAhead]);
    ends_ += state.text_end().is_last();
  }

 private:
  static constexpr size_t kAhead = 4096;
  std::vector<std::vector<uint32_t>> ahead_;
  std::vector<std::unique_ptr<Text>> states_;
  size_t steps_ = 0;
  size_t ends_ = 0;
};

}  // namespace

void MeasureHistory(const Logits& logits, size_t rounds, Report* report) {
  Sampling token(logits, UsualOptions());
  std::mt19937 random(3);
  std::vector<std::vector<uint32_t>> masks(kRows);
  for (std::vector<uint32_t>& mask : masks) {
    mask.resize((kVocabulary + 31) / 32);
    for (uint32_t& word : mask) word = static_cast<uint32_t>(random());
  }
  Texts short_texts(1, 1024);
  Texts texts(1, 32 * 1024);
  Texts long_texts(1, 128 * 1024);
  Texts many(kRows, 32 * 1024);
  Texts stopping(1, 32 * 1024, RepetitionSpec());
  Texts outside(1, 32 * 1024, PhasesSpec(1));
  Texts outside_all(1, 32 * 1024, PhasesSpec(service::kMaxPhases));
  const std::vector<Contender> contenders = {
      {"token_f32", [&](size_t row) { token(row); }},
      {"dry_1k", [&](size_t row) { short_texts.Step(row, &token); }},
      {"dry_32k", [&](size_t row) { texts.Step(row, &token); }},
      {"dry_128k", [&](size_t row) { long_texts.Step(row, &token); }},
      {"dry_32k_cold", [&](size_t row) { many.Step(row, &token); }},
      {"repetition_stop", [&](size_t row) { stopping.Step(row, &token); }},
      {"phase_inactive", [&](size_t row) { outside.Step(row, &token); }},
      {"phases_inactive_8", [&](size_t row) { outside_all.Step(row, &token); }},
      {"mask", [&](size_t row) { token(row, {}, masks[row].data()); }},
  };
  Schedule schedule;
  schedule.inputs = kRows;
  schedule.rounds = rounds;
  schedule.prepare = [&](size_t row) { Warm(logits, row); };
  const std::vector<double> medians = MeasureInterleaved(contenders, schedule);
  for (size_t i = 1; i < contenders.size(); ++i) report->Add({contenders[i].name, medians[i], "us", medians[0]});
}

}  // namespace sortition::bench
