// A caller's request for a row, in plain values that are not checked yet. It is made from a message (service/wire) or
// from a call in this process (client/local). JudgeRow makes a plan from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sortition::service {

// The tensors of a step, as far as a row refers to them.
struct StepTensors {
  uint32_t vocabulary = 0;   // of a whole row
  uint32_t tensor_rows = 0;  // of logits
  uint32_t first_row = 0;    // the row of logits where the row begins if it names none
  std::optional<uint32_t> mask_rows;
  std::optional<uint32_t> draft_rows;
};

// The tokens that a position may draw. Refers to the caller's lists.
struct MaskAsk {
  enum class Kind : uint8_t { kUnset, kTensorRow, kUploaded, kList };
  Kind kind = Kind::kUnset;
  uint64_t number = 0;  // the row's, or the uploaded mask's
  std::span<const uint32_t> allowed = {};
  std::span<const uint32_t> banned = {};
};

// A drafter's probabilities at one position. Refers to the caller's lists.
struct SparseAsk {
  std::span<const uint32_t> tokens;
  std::span<const float> probabilities;
};

// Refers to the caller's lists. Its enumerators without a value mean that the caller has named none.
struct RowAsk {
  enum class Task : uint8_t { kDraw, kScore, kVerifyDraft, kVerifyTree };
  enum class Mode : uint8_t { kUnset, kGreedy, kCoupled, kRejection, kBlock };
  enum class Sampling : uint8_t { kUnset, kWithReplacement, kWithoutReplacement };

  uint32_t row = 0;  // its index in the step
  uint64_t step_id = 0;
  uint32_t position = 0;
  std::optional<uint64_t> history_hash = std::nullopt;
  std::optional<uint32_t> truncate_to = std::nullopt;
  std::span<const uint32_t> append_tokens = {};
  bool has_checkpoint = false;
  uint32_t draw_salt = 0;
  std::optional<uint32_t> tensor_row = std::nullopt;
  bool is_compact = false;

  Task task = Task::kDraw;
  std::span<const uint32_t> tokens = {};                  // drafts, or tokens to be scored
  std::vector<std::span<const uint32_t>> requested = {};  // kScore
  bool wants_race = false;                                // kScore
  std::span<const int32_t> parents = {};                  // kVerifyTree
  Mode mode = Mode::kUnset;                               // kVerify*, as all that follows
  Sampling sampling = Sampling::kUnset;                   // kVerifyTree
  std::optional<uint32_t> draft_row = std::nullopt;
  std::vector<SparseAsk> sparse = {};
  bool return_probabilities = false;

  std::optional<MaskAsk> mask = std::nullopt;  // of all positions, ...
  std::vector<MaskAsk> masks = {};             // ... or of each
};

}  // namespace sortition::service
