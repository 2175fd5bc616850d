// One step of many sequences, and its results.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sortition/errors.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

class Sequence;

// Drafts of the next tokens of a sequence, to be verified together. Nothing is owned.
struct Drafts {
  // Fields as in VerifyDraft and VerifyTree of the contract.
  v1::VerifyMode mode = v1::VERIFY_MODE_COUPLED;
  std::span<const uint32_t> tokens;
  std::span<const int32_t> parents;  // of a tree: each draft's parent, -1 = the root; empty: a draft sequence
  // For rejection and blocks: distributions() adjacent rows of vocabulary_size probabilities, of the batch's
  // draft_dtype; or distributions() lists; or, for rejection, neither.
  const void* probabilities = nullptr;
  std::span<const v1::SparseProbabilities> sparse_probabilities;
  bool return_probabilities = false;
  v1::DraftSampling sampling = v1::DRAFT_SAMPLING_UNSPECIFIED;  // of a tree with probabilities, which needs it

  bool has_probabilities() const { return probabilities != nullptr || !sparse_probabilities.empty(); }
  // Returns the number of the drafter's distributions: one for each draft of a sequence; one for each place of a tree
  // that drafts follow, in the order of `parents`' values.
  size_t distributions() const;
};

// One row of logits for the next token of one sequence. Nothing is owned: all memory must stay alive and unchanged
// until the step is over.
struct Row {
  Sequence* sequence = nullptr;
  // vocabulary_size elements of the batch's type, little-endian, with any alignment. With `drafts` or `scored`:
  // positions() adjacent rows of them.
  const void* logits = nullptr;
  // Selects another draw at the same position. Has no effect on a draw that a watermark marks. 0 to 65535. The client
  // adds the number of the sequence's rewinds, modulo 65536. Scores use only the caller's salt.
  uint32_t draw_salt = 0;
  // Tokens that may be drawn in this step: ceil(vocabulary_size / 32) words, least significant bit first, 1 = allowed.
  // Null: all. With drafts there is one such mask for each position, adjacent; all scored tokens share one.
  const uint32_t* allowed_bits = nullptr;
  // Tokens that cannot be drawn in this step, even if `allowed_bits` allow them. With drafts one list for each
  // position, empty where nothing is banned; otherwise one list, which all scored tokens share. Empty: none.
  std::span<const std::vector<uint32_t>> banned_tokens = {};
  // Instead of a draw: drafts to be verified, with a VerifyResult, or tokens to be scored, with a ScoreResult.
  const Drafts* drafts = nullptr;
  std::span<const uint32_t> scored = {};
  // With `scored`: for each of these tokens, the ids whose log probabilities are returned at its position; or empty.
  std::span<const std::vector<uint32_t>> scored_requests = {};
  // With `scored`: returns where each of these tokens stands in the race of its position.
  bool score_race = false;

  size_t positions() const {
    if (drafts != nullptr) return drafts->tokens.size() + 1;
    return scored.empty() ? 1 : scored.size();
  }
  // Returns the number of masks in `allowed_bits`.
  size_t masks() const {
    if (allowed_bits == nullptr) return 0;
    return scored.empty() ? positions() : 1;
  }
};

// Returns INVALID_ARGUMENT if the row is invalid for every sequence.
absl::Status CheckRow(const Row& row);

// A word that the processor or a device raises when work started earlier is done: the low 32 bits of a count of
// finished works. Nothing is owned.
struct ReadyWord {
  const uint32_t* word = nullptr;  // at a multiple of 4
  uint32_t value = 0;              // the work is done at this value and at later ones, less than 2^31 beyond

  // True if the work is done and its writes are visible.
  bool IsSet() const {
    const std::atomic_ref<uint32_t> now(*const_cast<uint32_t*>(word));
    return static_cast<int32_t>(now.load(std::memory_order_acquire) - value) >= 0;
  }
};

struct Batch {
  v1::DType dtype = v1::DTYPE_F32;
  // Elements of a row: the vocabulary of every sequence in the batch, or this rank's shard of it
  // (ClientOptions::shard). Masks and draft probabilities cover the whole vocabulary and are read on rank 0 alone.
  uint32_t vocabulary_size = 0;
  std::vector<Row> rows;
  v1::DType draft_dtype = v1::DTYPE_F32;  // of Drafts::probabilities
  // Set if the logits are still being written when the batch is stepped. The word is raised when they are complete. If
  // logits and word lie in memory shared with the server (Client::AllocateRows), the server gets the step at once and
  // waits for the word itself; otherwise the client waits for it and sends the step then. Rows whose word is not raised
  // in time get DEADLINE_PASSED. Masks and draft probabilities must be complete when the batch is stepped.
  std::optional<ReadyWord> ready = std::nullopt;

  // Returns a batch of the rows of a matrix [sequences.size(), vocabulary_size], which lie `stride_bytes` apart; 0 =
  // adjacent.
  static Batch FromMatrix(v1::DType dtype, uint32_t vocabulary_size, const void* logits, size_t stride_bytes,
                          std::span<Sequence* const> sequences);
};

// Returns the bytes of one element; 0 for a type that the contract does not name.
uint32_t ElementBytes(v1::DType dtype);

struct StepOptions {
  // Upper bound on the time of the whole step, retries included; rows without a result by then fail with
  // DEADLINE_PASSED. Absent: ClientOptions::default_timeout.
  std::optional<absl::Duration> timeout;
  int32_t priority = 0;     // -100 to 100; higher goes first within the service
  std::string traceparent;  // W3C trace context, for the server's logs
};

// A result with `rewind` ends in a banned phrase (SamplingParameters.banned_phrases). The client has taken it back: the
// sequence is at rewind.position again, without the phrase's tokens. Its next draw cannot begin with the phrase's first
// token, and later draws have fresh noise. The caller drops the same tokens, which are rewind.tokens. Exception: a
// token that an option emits in any case cannot be banned; then the sequence is not cut the second time, and the phrase
// stays.
//
// The drawn token with the requested log probabilities; for a row with drafts, the accepted ones and the token after
// them; for a row with scored tokens, their log probabilities; or the error.
using RowResult = std::variant<v1::DrawResult, RowError, v1::VerifyResult, v1::ScoreResult>;

}  // namespace sortition::client
