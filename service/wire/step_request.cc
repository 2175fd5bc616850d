// Validation of Step and StepRow.
#include "service/wire/step_request.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/checks.h"
#include "service/wire/read_compact_rows.h"
#include "service/wire/region_payloads.h"
#include "service/wire/trace.h"

namespace sortition::service {

std::optional<kernels::DType> ToDType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return kernels::DType::kF32;
    case v1::DTYPE_F16:
      return kernels::DType::kF16;
    case v1::DTYPE_BF16:
      return kernels::DType::kBF16;
    default:
      return std::nullopt;
  }
}

uint64_t PositionsOf(const v1::StepRow& row) {
  switch (row.task_case()) {
    case v1::StepRow::kScore:
      return static_cast<uint64_t>(std::max(row.score().tokens_size(), 1));
    case v1::StepRow::kVerifyDraft:
      return static_cast<uint64_t>(row.verify_draft().draft_tokens_size()) + 1;
    case v1::StepRow::kVerifyTree:
      return static_cast<uint64_t>(row.verify_tree().draft_tokens_size()) + 1;
    case v1::StepRow::kDraw:
    case v1::StepRow::TASK_NOT_SET:
      break;
  }
  return 1;
}

std::optional<Refusal> CheckSize(std::string field, uint64_t want, uint64_t have, absl::string_view why) {
  if (have == want) return std::nullopt;
  return Refusal{Reason::kSizeMismatch, std::move(field), absl::StrCat(want, " bytes"),
                 absl::StrCat("has ", have, " bytes; ", why, " need ", want)};
}

namespace {

// Returns the field that a refusal of a payload's size names.
std::string NameOf(std::span<const Payload> payloads, size_t payload, absl::string_view tensor) {
  if (payloads[payload].range) return absl::StrCat(tensor, ".source.region.length");
  return absl::StrCat("payloads[", payload, "]");
}

std::optional<Refusal> ParseShard(const v1::Step& message, const Limits& limits, StepShape* shape) {
  if (!message.logits().has_shard()) return std::nullopt;
  const v1::VocabularyShard& shard = message.logits().shard();
  const uint32_t total = shard.total_vocabulary_size();
  const std::optional<Refusal> checks[] = {
      CheckRange(shard.count(), 2, Bounds::max_shards(), "step.logits.shard.count"),
      CheckRange<uint32_t>(shard.index(), 0, shard.count() - 1, "step.logits.shard.index"),
      CheckRange(total, 1, Bounds(limits).max_vocabulary(), "step.logits.shard.total_vocabulary_size"),
      CheckRange<uint32_t>(shard.first_token(), 0, total - 1, "step.logits.shard.first_token"),
  };
  for (const std::optional<Refusal>& refusal : checks) {
    if (refusal) return *refusal;
  }
  if (shape->width > total - shard.first_token()) {
    return Refusal{Reason::kOutOfRange, "step.logits.shard.first_token",
                   absl::StrCat("<= ", int64_t{total} - shape->width), "the slice ends behind the vocabulary"};
  }
  if (shard.index() != 0 && (message.has_masks() || message.has_draft_probabilities())) {
    return Refusal{Reason::kContradiction, message.has_masks() ? "step.masks" : "step.draft_probabilities", "",
                   "come with shard 0"};
  }
  shape->shard = ShardShape{shard.index(), shard.count(), shard.first_token(), shard.epoch()};
  shape->vocabulary = total;
  return std::nullopt;
}

// Refuses fields that a step without whole rows must not set, so that nothing is dropped in silence.
std::optional<Refusal> CheckNoTensor(const v1::LogitsTensor& logits) {
  const std::pair<bool, const char*> fields[] = {{logits.has_source(), "source"},
                                                 {logits.has_row_stride_bytes(), "row_stride_bytes"},
                                                 {logits.has_tensor_rows(), "tensor_rows"},
                                                 {logits.has_ready(), "ready"}};
  for (const auto& [is_set, name] : fields) {
    if (!is_set) continue;
    return Refusal{Reason::kContradiction, absl::StrCat("step.logits.", name), "", "every row of the step is compact"};
  }
  return std::nullopt;
}

std::optional<Refusal> ParsePairs(const v1::Step& message, std::span<const Payload> payloads, const Limits& limits,
                                  StepShape* shape) {
  const v1::LogitsTensor& logits = message.logits();
  const bool is_used =
      std::ranges::any_of(message.rows(), [](const v1::StepRow& row) { return row.compact_size() > 0; });
  if (!is_used && !logits.has_pairs()) return std::nullopt;
  if (!is_used) return Refusal{Reason::kContradiction, "step.logits.pairs", "", "no row of the step is compact"};
  if (!logits.has_pairs()) return MissingField("step.logits.pairs");
  const uint64_t bytes = CompactBytesOf(message, kernels::ElementBytes(shape->dtype));
  if (bytes > limits.max_compact_bytes) {
    return Refusal{Reason::kTooMany, "step.rows", Bounds(limits).max_compact_bytes().Text(),
                   absl::StrCat("the compact rows list ", bytes, " bytes")};
  }
  auto source = FindPayload(logits.pairs(), payloads, "step.logits.pairs");
  if (auto* refusal = std::get_if<Refusal>(&source)) return *refusal;
  shape->pairs_payload = std::get<size_t>(source);
  return std::nullopt;
}

std::optional<Refusal> ParseLogits(const v1::Step& message, std::span<const Payload> payloads, const Limits& limits,
                                   StepShape* shape) {
  if (!message.has_logits()) return MissingField("step.logits");
  const v1::LogitsTensor& logits = message.logits();
  const std::optional<kernels::DType> dtype = ToDType(logits.dtype());
  if (!dtype) return MissingField("step.logits.dtype");
  shape->dtype = *dtype;
  if (auto refusal =
          CheckRange(logits.vocabulary_size(), 1, Bounds(limits).max_vocabulary(), "step.logits.vocabulary_size")) {
    return refusal;
  }
  shape->vocabulary = shape->width = logits.vocabulary_size();
  if (auto refusal = ParseShard(message, limits, shape)) return refusal;
  const uint32_t element = kernels::ElementBytes(*dtype);
  const uint64_t packed = uint64_t{shape->width} * element;
  shape->row_stride = logits.has_row_stride_bytes() ? logits.row_stride_bytes() : packed;
  if (shape->row_stride < packed || shape->row_stride % element != 0) {
    return Refusal{Reason::kOutOfRange, "step.logits.row_stride_bytes",
                   absl::StrCat(">= ", packed, ", a multiple of ", element),
                   absl::StrCat("a stride of ", shape->row_stride, " bytes does not fit the row")};
  }
  uint64_t positions = 0;
  uint64_t rows = 0;
  bool is_compact = true;
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  for (const v1::StepRow& row : message.rows()) {
    shape->first_rows.push_back(static_cast<uint32_t>(rows));
    positions = std::min(positions + PositionsOf(row), kMost);
    if (!row.compact().empty()) continue;
    rows = std::min(rows + PositionsOf(row), kMost);
    is_compact = false;
  }
  // Each position is a row for a device, also where two share a tensor row. All positions of a step must fit the queue.
  if (positions > limits.max_step_positions) {
    return Refusal{Reason::kTooMany, "step.rows", Bounds(limits).max_step_positions().Text(),
                   absl::StrCat("the rows have ", positions, " positions; drafts and scores have several a row")};
  }
  if (auto refusal = ParsePairs(message, payloads, limits, shape)) return refusal;
  if (is_compact) return CheckNoTensor(logits);
  shape->tensor_rows = logits.has_tensor_rows() ? logits.tensor_rows() : static_cast<uint32_t>(rows);
  const Bound most_rows = Bounds(limits).max_step_positions();
  if (auto refusal = CheckRange(shape->tensor_rows, 1, most_rows, "step.logits.tensor_rows")) return refusal;

  auto source = FindPayload(logits.source(), payloads, "step.logits.source");
  if (auto* refusal = std::get_if<Refusal>(&source)) return *refusal;
  const size_t payload = std::get<size_t>(source);
  shape->logits_payload = payload;
  if (shape->shard && payloads[payload].imported != nullptr) {
    return Refusal{Reason::kNotImplemented, "step.logits.source.region", "",
                   "slices of rows lie in the host's memory, not in a device's"};
  }
  const uint64_t want = shape->row_stride * shape->tensor_rows;
  const uint64_t have = payloads[payload].size;
  return CheckSize(NameOf(payloads, payload, "step.logits"), want, have, "rows, stride and dtype");
}

std::optional<Refusal> ParseMasks(const v1::Step& message, std::span<const Payload> payloads, const Limits& limits,
                                  StepShape* shape) {
  if (!message.has_masks()) return std::nullopt;
  auto source = FindPayload(message.masks().source(), payloads, "step.masks.source");
  if (auto* refusal = std::get_if<Refusal>(&source)) return *refusal;
  shape->mask_payload = std::get<size_t>(source);
  shape->mask_rows = message.masks().rows();
  const Bound most_rows = Bounds(limits).max_step_positions();
  if (auto refusal = CheckRange(shape->mask_rows, 1, most_rows, "step.masks.rows")) return refusal;
  shape->mask_stride = uint64_t{(shape->vocabulary + 31) / 32} * 4;
  const uint64_t want = shape->mask_stride * shape->mask_rows;
  const uint64_t have = payloads[*shape->mask_payload].size;
  return CheckSize(NameOf(payloads, *shape->mask_payload, "step.masks"), want, have, "mask rows of this vocabulary");
}

std::optional<Refusal> ParseDrafts(const v1::Step& message, std::span<const Payload> payloads, const Limits& limits,
                                   StepShape* shape) {
  if (!message.has_draft_probabilities()) return std::nullopt;
  const v1::DraftTensor& drafts = message.draft_probabilities();
  auto source = FindPayload(drafts.source(), payloads, "step.draft_probabilities.source");
  if (auto* refusal = std::get_if<Refusal>(&source)) return *refusal;
  const std::optional<kernels::DType> dtype = ToDType(drafts.dtype());
  if (!dtype) return MissingField("step.draft_probabilities.dtype");
  shape->draft_payload = std::get<size_t>(source);
  shape->draft_dtype = *dtype;
  shape->draft_rows = drafts.rows();
  const Bound most_rows = Bounds(limits).max_step_positions();
  if (auto refusal = CheckRange(shape->draft_rows, 1, most_rows, "step.draft_probabilities.rows")) return refusal;
  shape->draft_stride = uint64_t{shape->vocabulary} * kernels::ElementBytes(*dtype);
  const uint64_t want = shape->draft_stride * shape->draft_rows;
  const uint64_t have = payloads[*shape->draft_payload].size;
  return CheckSize(absl::StrCat("payloads[", *shape->draft_payload, "]"), want, have,
                   "rows of draft probabilities and their dtype");
}

bool NamesMaskRow(const v1::StepRow& row) {
  const auto is_packed = [](const v1::RowMask& mask) { return mask.has_mask_row(); };
  return is_packed(row.mask()) || std::ranges::any_of(row.verify_draft().masks(), is_packed) ||
         std::ranges::any_of(row.verify_tree().masks(), is_packed);
}

bool NamesDraftRow(const v1::StepRow& row) {
  return row.verify_draft().has_draft_row() || row.verify_tree().has_draft_row();
}

// Refuses tensors that no row refers to and payloads that no tensor refers to.
std::optional<Refusal> CheckUsed(const v1::Step& message, std::span<const Payload> payloads, const StepShape& shape) {
  const auto is_logits = [&](const std::optional<size_t>& payload) {
    return payload && (payload == shape.logits_payload || payload == shape.pairs_payload);
  };
  if (shape.pairs_payload && shape.pairs_payload == shape.logits_payload) {
    return Refusal{Reason::kContradiction, "step.logits.pairs", "", "is the payload of the whole rows"};
  }
  if (is_logits(shape.mask_payload)) {
    const bool in_region = payloads[*shape.mask_payload].range.has_value();
    return Refusal{Reason::kContradiction, in_region ? "step.masks.source.region" : "step.masks.source.inline.payload",
                   "", "is the payload of the logits"};
  }
  if (is_logits(shape.draft_payload) || (shape.draft_payload && shape.draft_payload == shape.mask_payload)) {
    return Refusal{Reason::kContradiction, "step.draft_probabilities.source.inline.payload", "",
                   "is the payload of the logits or the masks"};
  }
  for (size_t i = 0; i < payloads.size(); ++i) {
    if (is_logits(i) || i == shape.mask_payload || i == shape.draft_payload) continue;
    return Refusal{Reason::kContradiction, absl::StrCat("payloads[", i, "]"), "", "nothing refers to this payload"};
  }
  if (shape.mask_payload && std::ranges::none_of(message.rows(), NamesMaskRow)) {
    return Refusal{Reason::kContradiction, "step.masks", "", "no row of the step refers to it"};
  }
  if (shape.draft_payload && std::ranges::none_of(message.rows(), NamesDraftRow)) {
    return Refusal{Reason::kContradiction, "step.draft_probabilities", "", "no row of the step refers to it"};
  }
  return std::nullopt;
}

std::optional<Refusal> ParseTimeout(const v1::Step& message, StepShape* shape) {
  if (!message.has_timeout()) return std::nullopt;
  const auto& timeout = message.timeout();
  // The range of google.protobuf.Duration.
  constexpr int64_t kMaxSeconds = 315'576'000'000;
  constexpr int32_t kMaxNanos = 999'999'999;
  if (auto refusal = CheckRange<int64_t>(timeout.seconds(), 0, kMaxSeconds, "step.timeout.seconds")) return refusal;
  if (auto refusal = CheckRange(timeout.nanos(), 0, kMaxNanos, "step.timeout.nanos")) return refusal;
  if (timeout.seconds() == 0 && timeout.nanos() == 0) {
    return Refusal{Reason::kOutOfRange, "step.timeout", "> 0 s", "is 0; a step without a timeout has no deadline"};
  }
  shape->timeout = absl::Seconds(timeout.seconds()) + absl::Nanoseconds(timeout.nanos());
  return std::nullopt;
}

template <typename T>
std::span<const T> ToSpan(const google::protobuf::RepeatedField<T>& list) {
  return {list.data(), static_cast<size_t>(list.size())};
}

MaskAsk ToAsk(const v1::RowMask& mask) {
  MaskAsk ask;
  ask.banned = ToSpan(mask.banned_tokens());
  switch (mask.kind_case()) {
    case v1::RowMask::KIND_NOT_SET:
      break;
    case v1::RowMask::kUploadedMaskId:
      ask.kind = MaskAsk::Kind::kUploaded;
      ask.number = mask.uploaded_mask_id();
      break;
    case v1::RowMask::kMaskRow:
      ask.kind = MaskAsk::Kind::kTensorRow;
      ask.number = mask.mask_row();
      break;
    case v1::RowMask::kAllowedTokens:
      ask.kind = MaskAsk::Kind::kList;
      ask.allowed = ToSpan(mask.allowed_tokens().tokens());
      break;
  }
  return ask;
}

// `Drafts` is VerifyDraft or VerifyTree.
template <typename Drafts>
void TakeDrafts(const Drafts& drafts, RowAsk* ask) {
  ask->tokens = ToSpan(drafts.draft_tokens());
  ask->mode = ToMode(drafts.mode());
  ask->return_probabilities = drafts.return_probabilities();
  if (drafts.has_draft_row()) ask->draft_row = drafts.draft_row();
  for (const auto& sparse : drafts.sparse_probabilities()) ask->sparse.push_back(service::ToAsk(sparse));
  for (const v1::RowMask& mask : drafts.masks()) ask->masks.push_back(ToAsk(mask));
}

}  // namespace

RowAsk::Mode ToMode(v1::VerifyMode mode) {
  switch (mode) {
    case v1::VERIFY_MODE_GREEDY:
      return RowAsk::Mode::kGreedy;
    case v1::VERIFY_MODE_COUPLED:
      return RowAsk::Mode::kCoupled;
    case v1::VERIFY_MODE_REJECTION:
      return RowAsk::Mode::kRejection;
    case v1::VERIFY_MODE_BLOCK:
      return RowAsk::Mode::kBlock;
    default:
      return RowAsk::Mode::kUnset;
  }
}

RowAsk::Sampling ToSampling(v1::DraftSampling sampling) {
  switch (sampling) {
    case v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT:
      return RowAsk::Sampling::kWithoutReplacement;
    case v1::DRAFT_SAMPLING_WITH_REPLACEMENT:
      return RowAsk::Sampling::kWithReplacement;
    default:
      return RowAsk::Sampling::kUnset;
  }
}

SparseAsk ToAsk(const v1::SparseProbabilities& sparse) {
  return {ToSpan(sparse.tokens()), ToSpan(sparse.probabilities())};
}

std::variant<StepShape, Refusal> ParseStepShape(const v1::Step& message, std::span<const Payload> payloads,
                                                const Limits& limits) {
  StepShape shape;
  if (message.rows_size() == 0) return MissingField("step.rows");
  if (auto refusal = CheckPriority(message.priority())) return *refusal;
  shape.priority = message.priority();
  if (message.has_trace()) {
    if (auto refusal = CheckTrace(message.trace())) return *refusal;
    shape.traced = IsSampled(message.trace());
  }
  if (auto refusal = ParseTimeout(message, &shape)) return *refusal;
  if (auto refusal = ParseLogits(message, payloads, limits, &shape)) return *refusal;
  if (auto refusal = ParseMasks(message, payloads, limits, &shape)) return *refusal;
  if (auto refusal = ParseDrafts(message, payloads, limits, &shape)) return *refusal;
  if (auto refusal = CheckUsed(message, payloads, shape)) return *refusal;
  return shape;
}

RowAsk ToAsk(const v1::StepRow& row, uint32_t index) {
  RowAsk ask;
  ask.row = index;
  ask.step_id = row.step_id();
  ask.position = row.position();
  if (row.has_history_hash()) ask.history_hash = row.history_hash();
  if (row.has_truncate_to()) ask.truncate_to = row.truncate_to();
  ask.append_tokens = ToSpan(row.append_tokens());
  ask.has_checkpoint = !row.checkpoint().empty();
  ask.draw_salt = row.draw_salt();
  if (row.has_tensor_row()) ask.tensor_row = row.tensor_row();
  ask.is_compact = !row.compact().empty();
  if (row.has_mask()) ask.mask = ToAsk(row.mask());
  switch (row.task_case()) {
    case v1::StepRow::kDraw:
    case v1::StepRow::TASK_NOT_SET:
      break;
    case v1::StepRow::kScore:
      ask.task = RowAsk::Task::kScore;
      ask.tokens = ToSpan(row.score().tokens());
      for (const auto& requested : row.score().requested()) ask.requested.push_back(ToSpan(requested.tokens()));
      ask.wants_race = row.score().race();
      break;
    case v1::StepRow::kVerifyDraft:
      ask.task = RowAsk::Task::kVerifyDraft;
      TakeDrafts(row.verify_draft(), &ask);
      break;
    case v1::StepRow::kVerifyTree:
      ask.task = RowAsk::Task::kVerifyTree;
      ask.parents = ToSpan(row.verify_tree().parents());
      ask.sampling = ToSampling(row.verify_tree().draft_sampling());
      TakeDrafts(row.verify_tree(), &ask);
      break;
  }
  return ask;
}

StepTensors StepShape::TensorsOf(uint32_t index) const {
  StepTensors tensors{vocabulary, tensor_rows, first_rows[index], std::nullopt, std::nullopt};
  if (mask_payload) tensors.mask_rows = mask_rows;
  if (draft_payload) tensors.draft_rows = draft_rows;
  return tensors;
}

}  // namespace sortition::service
