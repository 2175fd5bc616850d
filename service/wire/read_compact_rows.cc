// Compact rows from their bytes.
#include "service/wire/read_compact_rows.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/law/compact.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"
#include "service/checks.h"
#include "service/text/row.h"
#include "service/wire/phase_options.h"

namespace sortition::service {
namespace {

uint64_t TokensOf(const v1::CompactRow& row) { return uint64_t{row.first()} + row.others(); }

// Fills `tokens` from ids and logits as they lie in a payload. Returns true if a logit may fail the row.
template <kernels::DType kType>
bool Decode(const std::byte* ids, const std::byte* logits, std::span<kernels::TokenBits> tokens) {
  constexpr size_t kBytes = kernels::ElementBytes(kType);
  bool is_suspect = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint32_t id;
    uint32_t element = 0;
    std::memcpy(&id, ids + i * sizeof(id), sizeof(id));
    std::memcpy(&element, logits + i * kBytes, kBytes);
    const uint32_t sent = law::Widen(kType, element);
    is_suspect |= law::IsNan(sent) || law::IsTooLarge(sent);
    tokens[i] = {id, law::Canonical(sent)};
  }
  return is_suspect;
}

// Reads tokens and logits. A logit that would fail the row is refused as in a whole row.
std::optional<Refusal> ReadTokens(const v1::CompactRow& message, const std::string& field, const StepShape& shape,
                                  const PayloadView& pairs, const kernels::RowParameters& parameters,
                                  kernels::StatedRow* row) {
  const uint64_t count = TokensOf(message);
  const uint32_t element = kernels::ElementBytes(shape.dtype);
  const uint64_t bytes = count * (sizeof(uint32_t) + element);
  if (message.offset() > pairs.size() || bytes > pairs.size() - message.offset()) {
    return Refusal{Reason::kOutOfRange, field + ".offset", absl::StrCat("<= ", pairs.size(), " - ", bytes),
                   absl::StrCat("the pairs have ", pairs.size(), " bytes; the row lists ", bytes)};
  }
  thread_local std::vector<std::byte> copy;
  copy.resize(std::max<size_t>(copy.size(), bytes));
  pairs.Copy(message.offset(), bytes, copy.data());
  row->first.resize(message.first());
  row->others.resize(message.others());
  const std::byte* ids = copy.data();
  const std::byte* logits = ids + count * sizeof(uint32_t);
  for (std::vector<kernels::TokenBits>* const tokens : {&row->first, &row->others}) {
    const bool is_suspect = shape.dtype == kernels::DType::kF32   ? Decode<kernels::DType::kF32>(ids, logits, *tokens)
                            : shape.dtype == kernels::DType::kF16 ? Decode<kernels::DType::kF16>(ids, logits, *tokens)
                                                                  : Decode<kernels::DType::kBF16>(ids, logits, *tokens);
    for (size_t i = 0; is_suspect && i < tokens->size(); ++i) {
      uint32_t sent = 0;
      std::memcpy(&sent, logits + i * element, element);
      const kernels::RowFault error = law::SentError(law::Widen(shape.dtype, sent), parameters);
      if (error == kernels::RowFault::kNone) continue;
      kernels::RowOutput failed;
      failed.error = error;
      failed.error_token = (*tokens)[i].token;
      Refusal refusal = ToRefusal(failed, 0);
      refusal.field = field;
      return refusal;
    }
    ids += tokens->size() * sizeof(uint32_t);
    logits += tokens->size() * element;
  }
  return std::nullopt;
}

// A shard states its own tokens, and no sums: a sum's scale needs the whole row's largest logit.
std::optional<Refusal> WhyNotOfShard(const v1::CompactRow& message, const kernels::StatedRow& row,
                                     const std::string& field, const StepShape& shape) {
  if (message.has_unit_sum() || message.has_sum()) {
    return Refusal{Reason::kContradiction, field + (message.has_sum() ? ".sum" : ".unit_sum"), "",
                   "a shard states no sums"};
  }
  const uint64_t begin = shape.shard->first_token;
  const uint64_t end = begin + shape.width;
  for (const auto& [tokens, name] : {std::pair(&row.first, ".first"), std::pair(&row.others, ".others")}) {
    const auto outside = std::ranges::find_if(
        *tokens, [&](const kernels::TokenBits& token) { return token.token < begin || token.token >= end; });
    if (outside == tokens->end()) continue;
    return Refusal{Reason::kOutOfRange, absl::StrCat(field, name), absl::StrCat(begin, " to ", end - 1),
                   absl::StrCat("token ", outside - tokens->begin(), " is not of shard ", shape.shard->index)};
  }
  return std::nullopt;
}

// Takes the sum of `message`. At temperature 1 it is the unit sum.
std::optional<Refusal> TakeSum(const v1::CompactRow& message, const std::string& field, const SequenceSpec& spec,
                               kernels::StatedRow* row) {
  if (!message.has_sum()) return std::nullopt;
  if (!StatesOneSum(spec)) {
    return Refusal{Reason::kContradiction, field + ".sum", "",
                   "the sequence's temperature is dynamic, or a phase has another"};
  }
  const law::Temperature own = *SumTemperature(spec), unit = law::UnitTemperature();
  if (own.multiplier != unit.multiplier || own.exponent != unit.exponent || own.window != unit.window) {
    row->sum = message.sum();
  } else if (!row->unit_sum) {
    row->unit_sum = message.sum();
  }
  return std::nullopt;
}

// `unit_sum`: the field that the row's unit sum is of.
std::optional<Refusal> WhyUnsound(const kernels::StatedRow& row, const std::string& field, const SequenceSpec& spec,
                                  const char* unit_sum) {
  const auto unsound = law::FindUnsound(spec.parameters, spec.live_vocabulary, row.row());
  if (!unsound) return std::nullopt;
  const std::string why(unsound->why);
  switch (unsound->claim) {
    case law::Unsound::Claim::kFirst:
    case law::Unsound::Claim::kOthers: {
      const bool is_first = unsound->claim == law::Unsound::Claim::kFirst;
      return Refusal{Reason::kOutOfRange, absl::StrCat(field, is_first ? ".first" : ".others"),
                     is_first ? absl::StrCat("distinct live tokens below ", spec.live_vocabulary, ", in order")
                              : absl::StrCat("distinct tokens below ", spec.live_vocabulary,
                                             ", ids ascending, each masked or after all of `first`"),
                     absl::StrCat("token ", unsound->index, " ", why)};
    }
    case law::Unsound::Claim::kUnitSum:
      return Refusal{Reason::kOutOfRange, absl::StrCat(field, unit_sum), "what the listed tokens allow", why};
    case law::Unsound::Claim::kSum:
      return Refusal{Reason::kOutOfRange, field + ".sum", "what the listed tokens allow", why};
  }
  __builtin_unreachable();
}

std::optional<Refusal> ReadRow(const v1::CompactRow& message, const std::string& field, const StepShape& shape,
                               const PayloadView& pairs, const SequenceSpec& spec, const Limits& limits,
                               kernels::StatedRow* row) {
  if (TokensOf(message) > limits.max_compact_tokens) {
    return Refusal{Reason::kTooMany, message.first() > limits.max_compact_tokens ? field + ".first" : field + ".others",
                   Bounds(limits).max_compact_tokens().Text(),
                   absl::StrCat("the row lists ", TokensOf(message), " tokens")};
  }
  if (message.first() == 0 && !message.is_whole()) return MissingField(field + ".first");
  if (auto refusal = ReadTokens(message, field, shape, pairs, spec.parameters, row)) return refusal;
  row->is_whole = message.is_whole();
  if (message.has_unit_sum()) row->unit_sum = message.unit_sum();
  if (auto refusal = TakeSum(message, field, spec, row)) return refusal;
  if (message.first() == 0 && (message.has_unit_sum() || message.has_sum())) {
    return Refusal{Reason::kContradiction, field + (message.has_sum() ? ".sum" : ".unit_sum"), "",
                   "the row has no live token"};
  }
  if (shape.shard) {
    if (auto refusal = WhyNotOfShard(message, *row, field, shape)) return refusal;
  }
  auto unsound = WhyUnsound(*row, field, spec, message.has_unit_sum() ? ".unit_sum" : ".sum");
  if (!unsound && message.has_sum() && (row->sum ? row->sum : row->unit_sum) != message.sum()) {
    return Refusal{Reason::kOutOfRange, field + ".sum", "unit_sum", "the sequence's weights are at temperature 1"};
  }
  return unsound;
}

}  // namespace

uint64_t CompactTokensOf(const v1::StepRow& row) {
  uint64_t tokens = 0;
  for (const v1::CompactRow& compact : row.compact()) tokens += TokensOf(compact);
  return tokens;
}

uint64_t CompactBytesOf(const v1::Step& message, uint32_t element_bytes) {
  uint64_t tokens = 0;
  for (const v1::StepRow& row : message.rows()) tokens += CompactTokensOf(row);
  return tokens * (sizeof(uint32_t) + element_bytes);
}

std::variant<std::vector<kernels::StatedRow>, Refusal> ReadCompactRows(const v1::StepRow& row, uint32_t index,
                                                                       uint32_t positions, const StepShape& shape,
                                                                       const PayloadView& pairs,
                                                                       const SequenceSpec& spec, const Limits& limits) {
  const std::string field = absl::StrCat("step.rows[", index, "].compact");
  if (static_cast<uint32_t>(row.compact_size()) != positions) {
    return Refusal{Reason::kOutOfRange, field, absl::StrCat(positions, " entries"),
                   absl::StrCat("has ", row.compact_size(), " entries; there is one for each position of the row")};
  }
  std::vector<kernels::StatedRow> rows(positions);
  for (uint32_t i = 0; i < positions; ++i) {
    if (auto refusal = ReadRow(row.compact(static_cast<int>(i)), absl::StrCat(field, "[", i, "]"), shape, pairs, spec,
                               limits, &rows[i])) {
      return *std::move(refusal);
    }
  }
  return rows;
}

}  // namespace sortition::service
