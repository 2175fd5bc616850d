// Results of a step as structs that refer to the messages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "client/c/step.h"

namespace sortition::c {
namespace {

// A row's struct, and its error.
struct OwnedRow {
  sortition_result result = {};
  sortition_error error = {};
};

// A position's struct, and those that it refers to.
struct OwnedPosition {
  sortition_position position = {};
  sortition_logprobs raw = {};
  sortition_logprobs processed = {};
  sortition_logprobs tempered = {};
};

// Results, and all that their structs refer to. The lists have their final sizes before a struct refers to them.
class OwnedResults : public sortition_results {
 public:
  explicit OwnedResults(std::vector<client::RowResult> given)
      : sortition_results(), messages_(std::move(given)), rows_(messages_.size()) {
    size_t positions = 0;
    for (const client::RowResult& message : messages_) positions += PositionsOf(message);
    positions_.resize(positions);
    position_pointers_.reserve(positions);
    row_pointers_.reserve(messages_.size());
    for (const OwnedPosition& owned : positions_) position_pointers_.push_back(&owned.position);
    for (size_t i = 0; i < messages_.size(); ++i) {
      rows_[i].result.struct_size = sizeof(sortition_result);
      std::visit([&](const auto& message) { Set(message, &rows_[i]); }, messages_[i]);
      row_pointers_.push_back(&rows_[i].result);
    }
    struct_size = sizeof(sortition_results);
    rows = row_pointers_.data();
    row_count = row_pointers_.size();
  }
  OwnedResults(const OwnedResults&) = delete;
  OwnedResults& operator=(const OwnedResults&) = delete;

 private:
  static size_t PositionsOf(const client::RowResult& message) {
    if (const auto* verify = std::get_if<v1::VerifyResult>(&message))
      return static_cast<size_t>(verify->positions_size());
    if (const auto* score = std::get_if<v1::ScoreResult>(&message)) return static_cast<size_t>(score->positions_size());
    return std::holds_alternative<v1::DrawResult>(message) ? 1 : 0;
  }

  static void Set(const client::RowError& error, OwnedRow* row) {
    Describe(error, &row->error);
    row->result.kind = SORTITION_RESULT_ERROR;
    row->result.error = &row->error;
  }

  void Set(const v1::DrawResult& draw, OwnedRow* row) {
    sortition_result& result = row->result;
    result.kind = SORTITION_RESULT_DRAW;
    SetEnd(draw, &result);
    result.positions = position_pointers_.data() + used_;
    result.position_count = 1;
    SetPosition(draw);
  }

  void Set(const v1::VerifyResult& verify, OwnedRow* row) {
    sortition_result& result = row->result;
    result.kind = SORTITION_RESULT_VERIFY;
    SetEnd(verify, &result);
    result.accepted = verify.accepted();
    result.matched = verify.matched();
    static_assert(sizeof(bool) == sizeof(uint8_t));
    result.position_matched = reinterpret_cast<const uint8_t*>(verify.position_matched().data());
    result.position_matched_count = static_cast<size_t>(verify.position_matched_size());
    result.path = verify.path().data();
    result.path_count = static_cast<size_t>(verify.path_size());
    SetPositions(verify.positions(), &result);
  }

  void Set(const v1::ScoreResult& score, OwnedRow* row) {
    row->result.kind = SORTITION_RESULT_SCORE;
    SetPositions(score.positions(), &row->result);
  }

  template <typename Message>
  static void SetEnd(const Message& message, sortition_result* result) {
    result->finish_reason = message.finish_reason();
    if (!message.has_rewind()) return;
    result->rewind_position = message.rewind().position();
    result->rewind_tokens = message.rewind().tokens().data();
    result->rewind_count = static_cast<size_t>(message.rewind().tokens_size());
  }

  void SetPositions(const google::protobuf::RepeatedPtrField<v1::Position>& positions, sortition_result* result) {
    result->positions = position_pointers_.data() + used_;
    result->position_count = static_cast<size_t>(positions.size());
    for (const v1::Position& position : positions) {
      const std::string& bytes = position.probabilities();
      sortition_position& set = SetPosition(position);
      if (bytes.empty()) continue;
      std::vector<float>& values = probabilities_.emplace_back(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
      set.probabilities = values.data();
      set.probability_count = values.size();
    }
  }

  // Fills the next position. DrawResult and Position have the same fields.
  template <typename Message>
  sortition_position& SetPosition(const Message& message) {
    OwnedPosition& owned = positions_[used_++];
    sortition_position& position = owned.position;
    position.struct_size = sizeof(position);
    position.token = message.token();
    position.phase = message.phase();
    position.has_entropy = message.has_entropy() ? 1 : 0;
    position.entropy = message.entropy();
    position.has_kept_count = message.has_kept_count() ? 1 : 0;
    position.kept_count = message.kept_count();
    if (message.has_raw()) position.raw = SetLogprobs(message.raw(), &owned.raw);
    if (message.has_processed()) position.processed = SetLogprobs(message.processed(), &owned.processed);
    if (message.has_tempered()) position.tempered = SetLogprobs(message.tempered(), &owned.tempered);
    position.has_kept_log_mass = message.has_kept_log_mass() ? 1 : 0;
    position.kept_log_mass = message.kept_log_mass();
    position.kept_tokens = message.kept_tokens().data();
    position.kept_token_count = static_cast<size_t>(message.kept_tokens_size());
    return position;
  }

  static const sortition_logprobs* SetLogprobs(const v1::Logprobs& message, sortition_logprobs* set) {
    sortition_logprobs& logprobs = *set;
    logprobs.struct_size = sizeof(logprobs);
    logprobs.logprob = message.logprob();
    logprobs.rank = message.rank();
    logprobs.top_tokens = message.top_tokens().data();
    logprobs.top_logprobs = message.top_logprobs().data();
    logprobs.top_count = static_cast<size_t>(std::min(message.top_tokens_size(), message.top_logprobs_size()));
    logprobs.requested_logprobs = message.requested_logprobs().data();
    logprobs.requested_ranks = message.requested_ranks().data();
    logprobs.requested_count =
        static_cast<size_t>(std::min(message.requested_logprobs_size(), message.requested_ranks_size()));
    return set;
  }

  const std::vector<client::RowResult> messages_;
  std::vector<OwnedRow> rows_;
  std::vector<const sortition_result*> row_pointers_;
  std::vector<OwnedPosition> positions_;
  size_t used_ = 0;  // of positions_
  std::vector<const sortition_position*> position_pointers_;
  std::vector<std::vector<float>> probabilities_;
};

}  // namespace

sortition_results* MakeResults(std::vector<client::RowResult> results) { return new OwnedResults(std::move(results)); }

void FreeResults(sortition_results* results) { delete static_cast<OwnedResults*>(results); }

}  // namespace sortition::c

extern "C" void sortition_results_free(sortition_results* results) { sortition::c::FreeResults(results); }
