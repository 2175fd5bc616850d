// One sequence sampled on the caller's own thread: no service, no stream, no queue; the same tokens and bits. Needs the
// library sortition_in_process.
//
// With another sequence's options and seed it draws with the same noise at each position. From a drafter's logits it so
// proposes the tokens that the other is most likely to draw (docs/client.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sortition/batch.h"
#include "sortition/options.h"

namespace sortition::client {

class LocalText;

// Options of a row's step that the row does not have.
struct LocalStepOptions {
  v1::DType draft_dtype = v1::DTYPE_F32;  // of Drafts::probabilities
  uint32_t row = 0;                       // index of the row in the caller's step, for the fields of errors
  // Elements of a row. Absent: the sequence's vocabulary_size.
  std::optional<uint32_t> vocabulary_size = std::nullopt;
};

// Not thread-safe; distinct sequences may be used by distinct threads at once. Options are judged by the service's own
// code and refused with its words. Working memory belongs to the thread and grows to the largest vocabulary it has met.
class LocalSequence {
 public:
  // Opens a sequence without a round trip. Options that a server would refuse are refused with the same error
  // (ErrorOf).
  static absl::StatusOr<std::unique_ptr<LocalSequence>> Open(const SequenceOptions& options);
  // Returns a sequence that continues the first `position` tokens of this one (absent: all). Fails as Client::Fork.
  absl::StatusOr<std::unique_ptr<LocalSequence>> Fork(SequenceOptions options, std::optional<uint32_t> position) const;
  // Returns a copy that continues as this one would: unlike a fork, it has the state of the samplers.
  std::unique_ptr<LocalSequence> Clone() const;

  ~LocalSequence();
  LocalSequence(const LocalSequence&) = delete;
  LocalSequence& operator=(const LocalSequence&) = delete;

  // Draws a token from one row, verifies its drafts or scores its tokens, and advances by the resulting tokens; blocks
  // for the time of the computation. Ignores `row.sequence`. The result equals a server's, except that it has no
  // checkpoints: samplers' states stay here. A row that fails leaves the sequence as it was.
  RowResult Step(v1::DType dtype, const Row& row, const LocalStepOptions& options = {});

  uint32_t vocabulary_size() const;
  uint64_t seed() const;  // a secret
  bool stateful() const;
  uint32_t position() const;
  // Empty if the sequence is not stateful.
  std::vector<uint32_t> tokens() const;

  // Rewrites like Sequence's.
  absl::Status ReplaceLast(uint32_t token);
  absl::Status Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);

 private:
  friend class CudaStream;
  friend class LocalCuda;
  explicit LocalSequence(std::unique_ptr<LocalText> own);

  const std::unique_ptr<LocalText> own_;
};

}  // namespace sortition::client
