// One step of many sequences, and what comes back.
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
#include "client/cpp/errors.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

class Sequence;

// Drafts of the next tokens of a sequence, to be judged together. Nothing is owned.
struct Drafts {
  // What VerifyDraft and VerifyTree of the contract say of these.
  v1::VerifyMode mode = v1::VERIFY_MODE_COUPLED;
  std::span<const uint32_t> tokens;
  std::span<const int32_t> parents;  // of a tree: each draft's parent, -1 = the root; empty: a chain
  // Of a chain that is verified by rejection: tokens.size() rows of vocabulary_size probabilities of the batch's
  // draft_dtype, one right after the other; or a list for each draft; or neither.
  const void* probabilities = nullptr;
  std::span<const v1::SparseProbabilities> sparse_probabilities;
  bool return_probabilities = false;
};

// One row of logits for the next token of one sequence. Nothing is owned; everything stays alive and unchanged until
// the step is over.
struct Row {
  Sequence* sequence = nullptr;
  // vocabulary_size elements of the batch's type, little-endian, in any alignment. With `drafts` or `scored`:
  // positions() rows of them, one right after the other.
  const void* logits = nullptr;
  // Another draw at the same position. 0 to 65535.
  uint32_t draw_salt = 0;
  // Tokens that can be drawn in this step, or null: ceil(vocabulary_size / 32) words, least significant bit first, 1 =
  // allowed; for each position, one right after the other, but one for all scored tokens.
  const uint32_t* allowed_bits = nullptr;
  // Instead of a draw: drafts to be verified, answered by a VerifyResult, or tokens whose log probabilities are wanted,
  // answered by a ScoreResult.
  const Drafts* drafts = nullptr;
  std::span<const uint32_t> scored = {};

  size_t positions() const {
    if (drafts != nullptr) return drafts->tokens.size() + 1;
    return scored.empty() ? 1 : scored.size();
  }
  // Rows of `allowed_bits`.
  size_t masks() const {
    if (allowed_bits == nullptr) return 0;
    return scored.empty() ? positions() : 1;
  }
};

// Why a row makes no sense, whatever its sequence: INVALID_ARGUMENT.
absl::Status CheckRow(const Row& row);

// A word that is raised, by the processor or a device, once work is done that was begun before: the low 32 bits of a
// count of such works. Nothing is owned.
struct ReadyWord {
  const uint32_t* word = nullptr;  // at a multiple of 4
  uint32_t value = 0;              // by when; later values, less than 2^31 beyond, say so, too

  // Whether what was written before is there.
  bool IsSet() const {
    const std::atomic_ref<uint32_t> now(*const_cast<uint32_t*>(word));
    return static_cast<int32_t>(now.load(std::memory_order_acquire) - value) >= 0;
  }
};

struct Batch {
  v1::DType dtype = v1::DTYPE_F32;
  // Elements of a row: the vocabulary of every sequence in the batch, or of this rank's slice (ClientOptions::shard).
  // Masks and draft probabilities have the whole vocabulary, and are looked at on rank 0 alone.
  uint32_t vocabulary_size = 0;
  std::vector<Row> rows;
  v1::DType draft_dtype = v1::DTYPE_F32;  // of Drafts::probabilities
  // The logits are still being written when the batch is stepped, until this says that they are there. A server that
  // has them in shared memory, and the word (Client::AllocateRows), gets the step at once and waits for the word
  // itself; otherwise the client looks at it, and sends the step then. Rows that it keeps waiting for too long get
  // DEADLINE_PASSED. Masks and draft probabilities are there in any case.
  std::optional<ReadyWord> ready = std::nullopt;

  // The rows of a matrix [sequences.size(), vocabulary_size] whose rows lie `stride_bytes` apart; 0 = one right after
  // the other.
  static Batch FromMatrix(v1::DType dtype, uint32_t vocabulary_size, const void* logits, size_t stride_bytes,
                          std::span<Sequence* const> sequences);
};

// Bytes of one element; 0 for a type that the contract does not name.
uint32_t ElementBytes(v1::DType dtype);

struct StepOptions {
  // The whole step, with every retry, takes at most this long; rows that have no answer by then fail with
  // DEADLINE_PASSED. Absent: ClientOptions::default_timeout.
  std::optional<absl::Duration> timeout;
  int32_t priority = 0;     // -100 to 100; higher goes first within the service
  std::string traceparent;  // W3C trace context, for the server's logs
};

// The drawn token with the log probabilities asked for; of a row with drafts, those accepted and the token after them;
// of a row with scored tokens, their log probabilities; or why there is none.
using RowResult = std::variant<v1::DrawResult, RowError, v1::VerifyResult, v1::ScoreResult>;

}  // namespace sortition::client
