// Phases: parts of a text that begin and end with tags or by a budget, and the parameters that hold within
// (sortition.v1.Phase; kernels/law/LAW.md, "Phases").
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/row.h"
#include "service/text/history/token_log.h"

namespace sortition::service {

using TokenString = std::vector<uint32_t>;

// The options that a phase may replace, compiled. A sequence has one set, and one more for each phase.
struct PhaseOptions {
  kernels::RowParameters parameters;
  // Penalties as requested; 1, 0 and 0 when off.
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  // As requested; only for traces: the kernels use `parameters`.
  float temperature = 1;
  float top_p = 1;
  uint32_t top_k = 0;  // 0 = off
  // Bias and bans, sorted by token.
  std::vector<kernels::LogitEdit> listed_edits;
  bool has_allowed_tokens = false;
  std::vector<uint32_t> allowed_tokens;  // sorted, distinct

  bool operator==(const PhaseOptions&) const = default;

  bool penalises() const { return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0; }
  // Returns true if equal counts of tokens give equal edits under both.
  bool SameEdits(const PhaseOptions& other) const {
    return repetition_penalty == other.repetition_penalty && frequency_penalty == other.frequency_penalty &&
           presence_penalty == other.presence_penalty && listed_edits == other.listed_edits;
  }
  uint64_t bytes() const {  // without the object itself
    return listed_edits.capacity() * sizeof(kernels::LogitEdit) + allowed_tokens.capacity() * sizeof(uint32_t);
  }
};

// Phases have the numbers 1, 2, ...; 0 is the text outside of them.
inline constexpr uint32_t kNoPhase = 0;

struct Phase {
  TokenString begin;  // empty: at the output's first position
  TokenString end;    // empty: the budget alone ends it
  std::optional<uint32_t> max_tokens;
  TokenString then;  // not empty if and only if there is a budget
  PhaseOptions options;

  bool operator==(const Phase&) const = default;
  // Returns true if both hold at the same positions of every text.
  bool SamePlaces(const Phase& other) const {
    return begin == other.begin && end == other.end && max_tokens == other.max_tokens && then == other.then;
  }
};

// Finds the phase of each position of a text, token by token. Every call must get the same phases and the log of the
// same history. Memory is O(changes of phase in the kept history). Not thread-safe.
class PhaseTrack {
 public:
  // Phase `phase` holds from `position`.
  struct Mark {
    uint32_t position = 0;
    uint32_t phase = kNoPhase;
  };

  // Reads a history whose tokens are all in `log`.
  static PhaseTrack Of(const std::vector<Phase>& phases, const TokenLog& log, uint32_t prompt_length);

  // Call after a token was appended: the history has the first `length` tokens of `log`. It looks at fewer tokens
  // before that one than Lookback().
  void Pushed(const std::vector<Phase>& phases, const TokenLog& log, uint32_t length, uint32_t prompt_length);
  // Call after tokens were cut off, and after the prompt's length changed.
  void Cut(const std::vector<Phase>& phases, uint32_t length, uint32_t prompt_length);
  // Drops the data that no position >= `lowest` needs.
  void Trim(uint32_t lowest);

  // Returns the mark of the history's end.
  const Mark& now() const { return marks_.back(); }
  // Returns the token that is emitted at `position`, the history's end, in place of a drawn one, if there is one.
  std::optional<uint32_t> Forced(const std::vector<Phase>& phases, uint32_t position, uint32_t prompt_length) const;

  // Number of tokens before a position that must be known to continue from it.
  static uint32_t Lookback(const std::vector<Phase>& phases);

  uint64_t bytes() const { return marks_.capacity() * sizeof(Mark); }  // without the object itself

 private:
  // Begins the phase without a begin tag where the prompt ends, and no sooner.
  void BeginOutput(const std::vector<Phase>& phases, uint32_t length, uint32_t prompt_length);

  absl::InlinedVector<Mark, 2> marks_ = {Mark{}};  // by position; never empty; the last one of a position holds
};

}  // namespace sortition::service
