// Gives a text's steps to a client.
#include "tests/simulation/job.h"

#include <algorithm>
#include <span>
#include <utility>

namespace sortition::simulation {
namespace {

// Numbers of forks begin here. All other sequences have smaller ones.
constexpr uint32_t kFirstChild = 1000;

}  // namespace

std::unique_ptr<Job> Job::Make(uint64_t world_seed, uint32_t number, bool of_ranks) {
  auto job = std::make_unique<Job>();
  job->number = number;
  job->options = MakeOptions(world_seed, number);
  // The service drew the seed, and told only the first rank.
  if (of_ranks && !job->options.seed) job->options.seed = number;
  job->start = {job->options.prompt, static_cast<uint32_t>(job->options.prompt.size())};
  job->record = std::make_shared<client::SequenceRecord>(job->options);
  job->fork = PlanFork(world_seed, number);
  return job;
}

std::unique_ptr<Job> Job::Fork() {
  const ForkPlan plan = *std::exchange(fork, std::nullopt);
  auto child = std::make_unique<Job>();
  child->number = number + kFirstChild;
  child->options = options;
  child->options.request_id += " fork";
  child->options.choice_index += 5;
  const TextStep& now = text->step(step);
  const uint32_t position = static_cast<uint32_t>(now.tokens.size() * plan.percent / 100);
  child->start = {{now.tokens.begin(), now.tokens.begin() + position}, std::min(now.prompt_length, position)};
  const std::vector<uint32_t>& tokens = child->start.tokens;
  const uint32_t prompt_length = child->start.prompt_length;
  child->options.prompt.assign(tokens.begin(), tokens.begin() + prompt_length);
  child->record = std::make_shared<client::SequenceRecord>(child->options);
  child->record->origin = client::SequenceRecord::Origin{record, position};
  absl::MutexLock lock(&child->record->mutex);
  child->record->history.Append(std::span(tokens).subspan(prompt_length));
  return child;
}

bool Job::ApplyRewrites() {
  if (std::exchange(rewritten, true)) return true;
  const TextStep& now = text->step(step);
  absl::MutexLock lock(&record->mutex);
  if (now.truncate_to && !record->history.Truncate(*now.truncate_to).ok()) return false;
  if (!now.append.empty()) record->history.Append(now.append);
  return true;
}

const std::byte* Job::Logits(const std::optional<client::VocabularyShard>& shard) {
  const std::vector<std::byte>& whole = text->step(step).logits;
  if (!shard) return whole.data();
  std::vector<std::byte>& part = shards[step];
  if (part.empty()) {
    for (size_t row = 0; row < whole.size(); row += 2 * kVocabulary) {
      const auto first = whole.begin() + static_cast<ptrdiff_t>(row + 2 * shard->first_token);
      part.insert(part.end(), first, first + 2 * shard->tokens);
    }
  }
  return part.data();
}

TextStart Job::Now() const {
  if (text == nullptr) return start;
  return {text->step(step).tokens, text->step(step).prompt_length};
}

void Job::StartAnew() {
  client::SequenceOptions anew = options;
  const TextStart now = Now();
  anew.prompt.assign(now.tokens.begin(), now.tokens.begin() + now.prompt_length);
  const std::vector<uint32_t> output(now.tokens.begin() + now.prompt_length, now.tokens.end());
  anew.policy = policy;
  anew.turns = turns;
  anew.rewound = rewound;
  opening = open = busy = rewritten = false;
  record = std::make_shared<client::SequenceRecord>(std::move(anew));
  absl::MutexLock lock(&record->mutex);
  record->history.Append(output);
  record->checkpoint = checkpoint;
}

}  // namespace sortition::simulation
