// One text that a simulated caller wants, and its progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/sequence_record.h"
#include "sortition/options.h"
#include "tests/simulation/policies.h"
#include "tests/simulation/text.h"

namespace sortition::simulation {

// Not thread-safe.
struct Job {
  // Makes a sequence of the world, or a rank's part of it.
  static std::unique_ptr<Job> Make(uint64_t world_seed, uint32_t number, bool of_ranks);
  // Returns a second completion of the text from the place that `fork` plans. Called once.
  std::unique_ptr<Job> Fork();

  // Applies the step's rewrites. False if a cut finds nothing to cut, which is a defect of the history.
  bool ApplyRewrites();
  // Returns the step's logits, or a rank's shard of each row.
  const std::byte* Logits(const std::optional<client::VocabularyShard>& shard);
  // Continues in a new process, which has the text so far.
  void StartAnew();
  // Returns the tokens with which a new process begins.
  TextStart Now() const;

  uint32_t number = 0;  // the sequence's, unique in the world
  client::SequenceOptions options;
  std::shared_ptr<client::SequenceRecord> record;  // of the current process
  TextStart start;
  std::unique_ptr<Text> text;              // once the seed and the operator's policy are known
  const Rules* rules = nullptr;            // the policy under which the text was opened; null without one
  std::optional<v1::PolicyEffect> policy;  // its effect, as the client was told
  std::string checkpoint;                  // in the last answer; belongs to the text
  uint32_t turns = 0;                      // in the last answer
  client::Rewound rewound;                 // in the last answer
  uint32_t step = 0;                       // the next one
  bool opening = false;
  bool open = false;
  bool busy = false;
  bool rewritten = false;  // the step's rewrites have been made
  bool done = false;
  std::optional<ForkPlan> fork;                       // still to be made
  std::map<uint32_t, std::vector<std::byte>> shards;  // a rank's part of the logits, by step
};

}  // namespace sortition::simulation
