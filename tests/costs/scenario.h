// A scenario: what a worker sends in a run, by its fields and their sizes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sortition/v1/sampling.pb.h"

namespace sortition::costs {

// The message that is measured. Messages before it set it up.
enum class Kind : uint8_t {
  kHello,
  kOpen,
  kLastPiece,  // of a history that comes in two messages
  kReopen,
  kFork,
  kDraw,
  kScore,
  kVerifyDraft,
  kVerifyTree,
  kRetry,         // a step that was answered
  kShard,         // the last one of a step
  kCompactShard,  // likewise, of compact rows
  kCancel,
  kClose,
  kUploadMask,
  kReleaseMask,
  kAttachMemory,
  kBringAnswer,
  kSample,  // a unary call
};
inline constexpr std::string_view kKindNames[] = {
    "hello",        "open",         "last_piece",    "reopen",       "fork",          "draw",   "score",
    "verify_draft", "verify_tree",  "retry",         "shard",        "compact_shard", "cancel", "close",
    "upload_mask",  "release_mask", "attach_memory", "bring_answer", "sample"};

struct Scenario {
  Kind kind = Kind::kHello;
  uint64_t seed = 0;  // of values that are no sizes
  // Paths of the fields that are set, below SamplingParameters or below the step.
  std::set<std::string> options;
  // Numbers of elements: of repeated fields by their paths, of tokens, rows and drafts.
  std::map<std::string, uint64_t> sizes;

  std::string_view kind_name() const { return kKindNames[static_cast<size_t>(kind)]; }
  bool Has(std::string_view option) const { return options.contains(std::string(option)); }
  bool is_sharded() const { return kind == Kind::kShard || kind == Kind::kCompactShard || kind == Kind::kCancel; }
  // Returns the kind of a whole step with the task of this one's rows; the kind itself if it is no step.
  Kind task() const;
  bool verifies() const { return task() == Kind::kVerifyDraft || task() == Kind::kVerifyTree; }
  bool is_step() const { return verifies() || task() == Kind::kDraw || task() == Kind::kScore; }
  bool is_stateful() const { return Has("history"); }
  bool is_compact() const { return is_step() && (is_sharded() ? kind == Kind::kCompactShard : Has("compact")); }
  bool penalises() const {
    return is_stateful() && (Has("repetition_penalty") || Has("frequency_penalty") || Has("presence_penalty"));
  }
  // At least 1.
  uint64_t Size(std::string_view name) const;
  std::string Text() const;
  // Returns the scenario of a Text; none if it is of no scenario.
  static std::optional<Scenario> Parse(std::string_view text);
  bool operator==(const Scenario&) const = default;
};

// Returns true if the message or one before it has options of a sequence.
bool HasOptions(Kind kind);

// A uniform word for the key.
uint64_t WordOf(uint64_t seed, std::string_view key);

// The paths of all fields below SamplingParameters: "xtc.threshold", "phases.parameters.top_k".
const std::vector<std::string>& ParameterPaths();
// Draws scenario `index`. Every kind and every field has its turn. `work`: the most tokens of a
// history and of lists, and the most rows times listed tokens.
// `with`: options that it has in any case.
Scenario DrawScenario(uint64_t seed, uint64_t index, uint64_t work, const std::set<std::string>& with = {});

// Sets the fields of the scenario's options.
void FillParameters(const Scenario& scenario, uint32_t live_vocabulary, v1::SamplingParameters* parameters);

// Returns a scenario without what the error refuses. None if the error has another cause.
std::optional<Scenario> Repaired(const Scenario& scenario, const v1::Error& error, uint64_t attempt);

}  // namespace sortition::costs
