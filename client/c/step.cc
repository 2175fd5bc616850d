// Reads the caller's batch, and steps rows of local sequences.
#include "client/c/step.h"

#include <optional>
#include <span>
#include <string>
#include <utility>

namespace sortition::c {
namespace {

absl::StatusOr<v1::VerifyMode> ToVerifyMode(int32_t mode, const Name& name) {
  switch (mode) {
    case SORTITION_VERIFY_COUPLED:
      return v1::VERIFY_MODE_COUPLED;
    case SORTITION_VERIFY_GREEDY:
      return v1::VERIFY_MODE_GREEDY;
    case SORTITION_VERIFY_REJECTION:
      return v1::VERIFY_MODE_REJECTION;
    case SORTITION_VERIFY_BLOCK:
      return v1::VERIFY_MODE_BLOCK;
    default:
      return Refuse(v1::UNKNOWN_ENUM_VALUE, Name(name, "mode"), "SORTITION_VERIFY_*", absl::StrCat(mode));
  }
}

absl::StatusOr<v1::DraftSampling> ToDraftSampling(int32_t sampling, const Name& name) {
  switch (sampling) {
    case 0:
      return v1::DRAFT_SAMPLING_UNSPECIFIED;
    case SORTITION_DRAFTS_WITHOUT_REPLACEMENT:
      return v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT;
    case SORTITION_DRAFTS_WITH_REPLACEMENT:
      return v1::DRAFT_SAMPLING_WITH_REPLACEMENT;
    default:
      return Refuse(v1::UNKNOWN_ENUM_VALUE, Name(name, "sampling"), "SORTITION_DRAFTS_*", absl::StrCat(sampling));
  }
}

absl::Status ReadSparse(const sortition_drafts& drafts, const Name& name, StepInput::Task* task) {
  constexpr size_t kLeast = SORTITION_C_SIZE_TO(sortition_sparse_probabilities, count);
  const Name field(name, "sparse_probabilities");
  for (size_t i = 0; i < task->drafts.distributions(); ++i) {
    const auto list = ReadElement(drafts.sparse_probabilities, i, kLeast, field);
    if (!list.ok()) return list.status();
    const Name element(field, i);
    const auto tokens = Span(list->tokens, list->count, Name(element, "tokens"));
    if (!tokens.ok()) return tokens.status();
    const auto values = Span(list->probabilities, list->count, Name(element, "probabilities"));
    if (!values.ok()) return values.status();
    v1::SparseProbabilities& sparse = task->sparse.emplace_back();
    sparse.mutable_tokens()->Assign(tokens->begin(), tokens->end());
    sparse.mutable_probabilities()->Assign(values->begin(), values->end());
  }
  return absl::OkStatus();
}

absl::Status ReadDrafts(const sortition_drafts* given, const Name& name, StepInput::Task* task) {
  const auto drafts = Read(given, SORTITION_C_SIZE_TO(sortition_drafts, count), name);
  if (!drafts.ok()) return drafts.status();
  const auto mode = ToVerifyMode(drafts->mode, name);
  if (!mode.ok()) return mode.status();
  const auto tokens = Span(drafts->tokens, drafts->count, Name(name, "tokens"));
  if (!tokens.ok()) return tokens.status();
  task->drafts.mode = *mode;
  task->drafts.tokens = *tokens;
  if (drafts->parents != nullptr) task->drafts.parents = {drafts->parents, drafts->count};
  task->drafts.probabilities = drafts->probabilities;
  task->drafts.return_probabilities = drafts->return_probabilities != 0;
  const auto sampling = ToDraftSampling(drafts->sampling, name);
  if (!sampling.ok()) return sampling.status();
  task->drafts.sampling = *sampling;
  if (drafts->sparse_probabilities != nullptr) {
    if (absl::Status status = ReadSparse(*drafts, name, task); !status.ok()) return status;
  }
  task->drafts.sparse_probabilities = task->sparse;
  return absl::OkStatus();
}

absl::StatusOr<client::Row> ReadRow(const sortition_row& given, const Name& name, StepInput* input) {
  client::Row row;
  row.logits = given.logits;
  row.draw_salt = given.draw_salt;
  row.allowed_bits = given.allowed_bits;
  if (given.drafts != nullptr) {
    StepInput::Task& task = *input->tasks.emplace_back(std::make_unique<StepInput::Task>());
    if (absl::Status status = ReadDrafts(given.drafts, Name(name, "drafts"), &task); !status.ok()) return status;
    row.drafts = &task.drafts;
  }
  const Name field(name, "scored");
  const auto scored = Span(given.scored, given.scored_count, field);
  if (!scored.ok()) return scored.status();
  // The row would draw instead.
  if (given.scored != nullptr && scored->empty()) return Refuse(v1::MISSING_FIELD, field, "at least 1", "no token");
  row.scored = *scored;
  const auto banned = Span(given.banned_tokens, given.banned_count, Name(name, "banned_tokens"));
  if (!banned.ok()) return banned.status();
  if (banned->empty()) return row;
  auto lists = std::make_unique<std::vector<std::vector<uint32_t>>>(row.scored.empty() ? row.positions() : 1);
  lists->front().assign(banned->begin(), banned->end());
  row.banned_tokens = *input->bans.emplace_back(std::move(lists));
  return row;
}

}  // namespace

absl::StatusOr<StepInput> ReadBatch(const sortition_batch* given, bool local) {
  const auto read = Read(given, SORTITION_C_SIZE_TO(sortition_batch, dtype), "batch");
  if (!read.ok()) return read.status();
  const Name all("batch.rows");
  const auto rows = Span(read->rows, read->row_count, all);
  if (!rows.ok()) return rows.status();
  if (rows->empty()) return Refuse(v1::MISSING_FIELD, all, "at least 1", "a batch has rows");
  StepInput input;
  input.batch.dtype = static_cast<v1::DType>(read->dtype);
  input.batch.draft_dtype = read->draft_dtype != 0 ? static_cast<v1::DType>(read->draft_dtype) : v1::DTYPE_F32;
  for (const auto& [dtype, name] :
       {std::pair(input.batch.dtype, "batch.dtype"), std::pair(input.batch.draft_dtype, "batch.draft_dtype")}) {
    if (client::ElementBytes(dtype) != 0) continue;
    return Refuse(v1::UNKNOWN_ENUM_VALUE, name, "SORTITION_F32, SORTITION_F16, SORTITION_BF16", absl::StrCat(dtype));
  }
  input.batch.vocabulary_size = read->vocabulary_size;
  if (read->ready_word != nullptr) {
    if (local) return Refuse(v1::CONTRADICTION, "batch.ready_word", "null", "a step of local sequences does not wait");
    input.batch.ready = client::ReadyWord{read->ready_word, read->ready_value};
  }
  input.sequences.reserve(read->row_count);
  input.batch.rows.reserve(read->row_count);
  for (size_t i = 0; i < read->row_count; ++i) {
    const auto given_row = ReadElement(read->rows, i, SORTITION_C_SIZE_TO(sortition_row, logits), all);
    if (!given_row.ok()) return given_row.status();
    const Name name(all, i);
    const Name field(name, "sequence");
    auto sequence = AllSequences::All().Find(given_row->sequence, field);
    if (!sequence.ok()) return sequence.status();
    if (local != ((*sequence)->remote() == nullptr)) {
      return Refuse(v1::CONTRADICTION, field, "", local ? "a client's sequence" : "a local sequence");
    }
    auto row = ReadRow(*given_row, name, &input);
    if (!row.ok()) return row.status();
    row->sequence = (*sequence)->remote();
    input.batch.rows.push_back(*row);
    input.sequences.push_back(*std::move(sequence));
  }
  return input;
}

namespace {

client::RowResult StepRow(const StepInput& input, uint32_t index) {
  const client::LocalStepOptions options{input.batch.draft_dtype, index};
  return input.sequences[index]->WithLocal([&](client::LocalSequence& self) -> client::RowResult {
    if (self.vocabulary_size() == input.batch.vocabulary_size) {
      return self.Step(input.batch.dtype, input.batch.rows[index], options);
    }
    client::RowError error;  // a server's
    error.code = absl::StatusCode::kInvalidArgument;
    error.reason = v1::VOCABULARY_MISMATCH;
    error.field = "step.logits.vocabulary_size";
    error.limit = absl::StrCat(self.vocabulary_size());
    error.message = absl::StrCat("the sequence was opened with another width than ", input.batch.vocabulary_size);
    return error;
  });
}

}  // namespace
}  // namespace sortition::c

extern "C" sortition_code sortition_local_step(const sortition_batch* batch, sortition_results** results,
                                               sortition_error** error) {
  using sortition::c::StepRow;
  return sortition::c::Make(results, "results", error, [&]() -> absl::StatusOr<sortition_results*> {
    const auto input = sortition::c::ReadBatch(batch, true);
    if (!input.ok()) return input.status();
    std::vector<sortition::client::RowResult> rows;
    rows.reserve(input->sequences.size());
    for (uint32_t i = 0; i < input->sequences.size(); ++i) rows.push_back(StepRow(*input, i));
    return sortition::c::MakeResults(std::move(rows));
  });
}
