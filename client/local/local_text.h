// A text in this process. LocalSequence, LocalCuda, CudaStream and a client in process are made of it: they ask the
// service's own code (service/text) in plain values, and bring the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/rewinds.h"
#include "client/sortition/sampler.h"
#include "kernels/row.h"
#include "service/receipt/record.h"
#include "service/refusal.h"
#include "service/text/checkpoint.h"
#include "service/text/row.h"
#include "service/text/row_ask.h"
#include "service/text/sequence_spec.h"
#include "service/text/text.h"
#include "sortition/batch.h"
#include "sortition/local_sequence.h"

namespace sortition::client {

// Converts a refusal of the service's code to the client's error.
RowError ToRowError(const service::Refusal& refusal);

// Not thread-safe; distinct sequences may be used by distinct threads at once. Unless their comments differ, members do
// the same as LocalSequence's.
class LocalText {
 public:
  static absl::StatusOr<std::unique_ptr<LocalText>> Open(const SequenceOptions& options);
  // Opens a text that is at `start`, for a sampler that keeps the tokens itself. The seed is drawn if there is none.
  // With `options.receipts` each result has receipts (last_receipts), which do not go into that log.
  struct Start {
    std::span<const uint32_t> tokens;
    uint32_t prompt_length = 0;
    uint32_t position = 0;  // the number of tokens, unless these are not known
  };
  static std::variant<std::unique_ptr<LocalText>, RowError> OpenAt(const SequenceOptions& options,
                                                                   std::optional<uint64_t> seed, const Start& start);
  absl::StatusOr<std::unique_ptr<LocalText>> Fork(SequenceOptions options, std::optional<uint32_t> position) const;

  // Leaves banned phrases where they stand: the caller takes them back, and names the bans in its rows.
  void LeavePhrases() { takes_back_ = false; }

  // Must not be called between Begin and End.
  std::unique_ptr<LocalText> Clone() const;

  RowResult Step(v1::DType dtype, const Row& row, const LocalStepOptions& options = {});

  // Step in parts, for callers with their own kernels. Returns the first requests to the kernels. They refer to the
  // row's memory and to the sequence, which must not be used until End or Abandon.
  using Requests = std::vector<kernels::RowRequest>;
  std::variant<Requests, RowError> Begin(v1::DType dtype, const Row& row, const LocalStepOptions& options = {});
  // Takes the answers to the last requests, in their order. Returns the next requests; none: call End.
  Requests Continue(std::span<kernels::RowOutput> answers);
  // Advances by the answers.
  RowResult End();
  // There is no answer: the sequence is as it was.
  void Abandon();

  // The state from which a device continues by itself (client/sortition/sampler.h).
  struct StreamStart {
    std::shared_ptr<const service::SequenceSpec> spec;
    kernels::NoiseKey noise;
    uint64_t sampler_state = 0;
    std::vector<kernels::LogitEdit> edits;  // without penalties
    std::vector<TokenCount> counts;
  };
  StreamStart StartOnStream() const;
  // Takes the output of the draw at this position, which the device made as row `row`. Advances by it.
  RowResult TakeDrawn(uint32_t row, kernels::RowOutput output);

  uint32_t vocabulary_size() const { return spec_->vocabulary; }
  uint64_t seed() const { return spec_->seed; }  // a secret
  bool stateful() const { return state_ != nullptr; }
  const kernels::RowParameters& parameters() const { return spec_->parameters; }
  uint32_t position() const { return position_; }
  // Empty if the sequence is not stateful.
  std::vector<uint32_t> tokens() const;
  std::optional<uint64_t> history_hash() const;  // absent if it is not stateful
  uint64_t identity() const { return spec_->digest(); }

  // The state of samplers that depend on past probabilities.
  bool keeps_sampler_state() const { return kernels::KeepsSamplerState(spec_->parameters.chain); }
  void SetSamplerState(uint64_t state) { sampler_state_ = state; }
  // Returns that after the last result's tokens.
  const service::Checkpoint& last_checkpoint() const { return last_checkpoint_; }

  // Returns a receipt for each token of the last result, without chain, index and previous hash. Empty unless the text
  // was opened with receipts.
  const std::vector<service::Receipt>& last_receipts() const { return last_receipts_; }

  absl::Status ReplaceLast(uint32_t token);
  absl::Status Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);
  // Makes the text the first `shared` tokens of the present one, then `appended`: `position` tokens. A sequence that is
  // not stateful takes the position alone. The tokens are in the live vocabulary.
  void MoveTo(uint32_t position, uint32_t shared, std::span<const uint32_t> appended);

 private:
  // The row that has begun, or a place for one. Refers to the caller's tensors.
  struct Begun {
    service::RowRun run;
    bool has_row = false;  // it has begun and not ended
    service::RowAsk ask = {};
    kernels::DType dtype = kernels::DType::kF32;
    const std::byte* logits = nullptr;
    kernels::DType draft_dtype = kernels::DType::kF32;
    const std::byte* probabilities = nullptr;
    std::vector<uint32_t> asked = {};  // positions of the last requests
  };

  LocalText(std::shared_ptr<const service::SequenceSpec> spec, std::unique_ptr<service::Text> state, uint32_t position);
  absl::Status CheckToken(uint32_t token) const;
  // Begin a row, or return why it does not begin. BeginBanned adds the rewinds' bans at this position to `row`.
  std::optional<RowError> BeginRow(v1::DType dtype, const Row& row, const LocalStepOptions& options);
  std::optional<RowError> BeginBanned(v1::DType dtype, Row row, const LocalStepOptions& options);
  std::optional<RowError> CheckAndPlan(v1::DType dtype, const Row& row, const LocalStepOptions& options);
  std::optional<RowError> Plan(v1::DType dtype, const Row& row, const LocalStepOptions& options);
  // Makes place for another row.
  void Clear();
  kernels::RowRequest RequestAt(uint32_t index) const;
  // Takes back the phrase that the text ends in, if it ends in one.
  void TakeBack(const service::TextEnd& end);

  const std::shared_ptr<const service::SequenceSpec> spec_;
  std::unique_ptr<service::Text> state_;  // null: no option looks at the history
  uint32_t position_;
  uint64_t sampler_state_;  // the state of samplers that depend on past probabilities
  service::Checkpoint last_checkpoint_;
  std::vector<service::Receipt> last_receipts_;
  Rewinds rewinds_;
  bool takes_back_ = true;
  Begun begun_;
};

}  // namespace sortition::client
