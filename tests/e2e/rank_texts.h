// Texts that several ranks step, each with a shard of every row, and that the plain reference samples whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sortition/client.h"

namespace sortition::testing {

// Expected texts: the rows and tokens of some texts of mixed parameters, drawn by the reference. Constant once made.
class RankTexts {
 public:
  static constexpr uint32_t kVocabulary = 2000;
  static constexpr uint32_t kPrompt = 5;

  explicit RankTexts(int steps);

  int steps() const { return steps_; }
  size_t texts() const { return options_.size(); }
  const client::SequenceOptions& options(size_t text) const { return options_[text]; }
  // The whole row, of f16.
  const std::vector<std::byte>& row(size_t text, int step) const { return rows_[text][static_cast<size_t>(step)]; }
  const std::string& expected(size_t text, int step) const { return expected_[text][static_cast<size_t>(step)]; }
  std::vector<uint32_t> tokens(size_t text, int steps) const;  // drawn in the first `steps` steps
  // Returns a packed mask for every third step of the first text, and null for others.
  const uint32_t* mask(size_t text, int step) const { return text == 0 && step % 3 == 2 ? mask_.data() : nullptr; }

 private:
  int steps_;
  std::vector<client::SequenceOptions> options_;
  std::vector<uint32_t> mask_;
  std::vector<std::vector<std::vector<std::byte>>> rows_;
  std::vector<std::vector<std::string>> expected_;
  std::vector<std::vector<uint32_t>> tokens_;
};

// Returns the shard of rank `index`. All have different widths, and none ends where a kernel's group does.
client::VocabularyShard ShardOf(uint32_t index, uint32_t count);

// One rank, as if in a separate process: a client, and its part of all texts.
class Rank {
 public:
  // Takes the texts up after `done` steps.
  Rank(const RankTexts* texts, client::ClientOptions options, int done = 0);

  // Steps all texts once, and compares. Fails the test where anything differs from the reference.
  void Step(const client::StepOptions& options = {});
  // Returns the results of the next step without comparing them.
  std::vector<client::RowResult> TryStep(const client::StepOptions& options = {});
  int done() const { return done_; }
  client::Client& client() { return *client_; }

 private:
  const RankTexts& texts_;
  const client::VocabularyShard shard_;
  std::unique_ptr<client::Client> client_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
  int done_;
};

// Runs `run(index)` on a thread for each of `count` ranks, and `meanwhile` on this one: servers are started there, as
// they end with the thread that started them.
void OnRanks(
    uint32_t count, const std::function<void(uint32_t)>& run, const std::function<void()>& meanwhile = [] {});

}  // namespace sortition::testing
