// Requests of the callers of a simulated world, and their right results without faults.
//
// Both are functions of the seed alone: random choices that depend on sequence, step and text so far decide where a
// caller overrides tokens, cuts its text, forces tokens, asks for other draws and masks. So a run with faults has one
// right text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/sequence_record.h"
#include "sortition/batch.h"

namespace sortition::simulation {

inline constexpr uint32_t kVocabulary = 24;

// Returns the options of sequence number `sequence`. Some sequences have no state, some leave the seed to the service.
client::SequenceOptions MakeOptions(uint64_t seed, uint32_t sequence);
// Returns the number of tokens to draw.
uint32_t StepsOf(uint64_t seed, uint32_t sequence);
// A sequence is forked before step `step`, at a place in percent of its length. Absent for most sequences.
struct ForkPlan {
  uint32_t step = 0;
  uint32_t percent = 0;
};
std::optional<ForkPlan> PlanFork(uint64_t seed, uint32_t sequence);

// One step of a caller, and the right answer.
struct TextStep {
  // The text before the step. The first `prompt_length` tokens are prompt.
  std::vector<uint32_t> tokens;
  uint32_t prompt_length = 0;
  // The caller's rewrites.
  std::optional<uint32_t> truncate_to;
  std::vector<uint32_t> append;
  // The rows of logits: one for a draw, one more than drafts, or one for each scored token.
  std::vector<std::byte> logits;  // bf16
  uint32_t draw_salt = 0;
  std::vector<uint32_t> allowed_bits;         // empty: all
  std::vector<std::vector<uint32_t>> banned;  // the row's own, as in client::Row
  std::vector<uint32_t> drafts;               // to be verified; empty: a draw
  std::vector<int32_t> parents;               // the drafts', if they are a tree
  // The drafter's probabilities, in one of two forms; empty: none.
  std::vector<float> probabilities;
  std::vector<v1::SparseProbabilities> sparse_probabilities;
  client::Drafts verification;         // refers to these
  std::vector<uint32_t> scored;        // to be scored instead; the text stays
  std::optional<uint32_t> rewound_to;  // the answer's: the next step's text ends here
  // The answer, printed to the bit, token by token.
  std::string answer;
};

// The tokens with which a sequence starts: its prompt, or its parent's tokens if it is a fork.
struct TextStart {
  std::vector<uint32_t> tokens;
  uint32_t prompt_length = 0;
};

// The run without faults, by the plain reference.
class Text {
 public:
  // `options` have the parameters and the seed in force.
  Text(uint64_t seed, uint32_t sequence, const client::SequenceOptions& options, const TextStart& start);

  const TextStep& step(uint32_t index) const { return steps_[index]; }
  uint32_t steps() const { return static_cast<uint32_t>(steps_.size()); }
  // The text after the last step.
  const std::vector<uint32_t>& tokens() const { return tokens_; }

 private:
  std::vector<TextStep> steps_;
  std::vector<uint32_t> tokens_;
};

}  // namespace sortition::simulation
