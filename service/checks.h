// Checks that all request parsers share. Each returns a refusal that names the field, or nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"

namespace sortition::service {

// Names a field in refusals. The text is put together only if there is a refusal. Refers to the text that it is made
// of, which must outlive it.
class FieldName {
 public:
  FieldName(const char* name) : name_(name) {}
  FieldName(const std::string& name) : name_(name) {}
  FieldName(absl::string_view name) : name_(name) {}
  // `name` of element `index` of `list`; the element itself if it is empty.
  FieldName(absl::string_view list, int index, absl::string_view name) : list_(list), index_(index), name_(name) {}
  // `name` of row `row` of a step.
  FieldName(int row, absl::string_view name) : FieldName("step.rows", row, name) {}

  std::string Text() const {
    if (list_.empty()) return std::string(name_);
    return absl::StrCat(list_, "[", index_, name_.empty() ? "]" : "].", name_);
  }

 private:
  const absl::string_view list_;
  const int index_ = 0;
  const absl::string_view name_;
};

// Returns the field of row `row` of a step.
inline std::string StepRowField(uint32_t row) { return absl::StrCat("step.rows[", row, "]"); }

inline Refusal MissingField(const FieldName& field) {
  return Refusal{Reason::kMissingField, field.Text(), "", "must be set"};
}

// Refuses ids whose log probabilities are wanted if no distribution is.
inline Refusal NoLogprobs(const FieldName& field) {
  return Refusal{Reason::kContradiction, field.Text(), "",
                 "none of raw_logprobs, processed_logprobs and tempered_logprobs is asked for"};
}

// Refuses a value that is not between the two.
template <typename T>
Refusal OutOfRange(T value, T low, T high, const FieldName& field) {
  return Refusal{Reason::kOutOfRange, field.Text(), absl::StrCat(low, "..", high),
                 absl::StrCat(value, " is out of range")};
}

template <typename T>
std::optional<Refusal> CheckRange(T value, T low, T high, const FieldName& field) {
  // NaN fails both comparisons.
  if (value >= low && value <= high) return std::nullopt;
  return OutOfRange(value, low, high, field);
}

// Checks a range that ends at a limit. The refusal names the limit.
inline std::optional<Refusal> CheckRange(uint64_t value, uint64_t low, const Bound& high, const FieldName& field) {
  if (value >= low && value <= high.value) return std::nullopt;
  Refusal refusal = OutOfRange(value, low, high.value, field);
  if (value > high.value) refusal.limit = high.Text();
  return refusal;
}

// Checks the priority of a step.
inline std::optional<Refusal> CheckPriority(int32_t priority) {
  if (priority >= -kMaxPriority && priority <= kMaxPriority) return std::nullopt;
  return Refusal{Reason::kOutOfRange, "step.priority", Bounds::max_priority().Text(),
                 absl::StrCat(priority, " is out of range")};
}

// Check counts of bytes and of elements. A `most` that is a limit is named.
inline std::optional<Refusal> CheckByteCount(uint64_t count, uint64_t most, const FieldName& field) {
  if (count <= most) return std::nullopt;
  return Refusal{Reason::kTooMany, field.Text(), absl::StrCat("<= ", most, " bytes"),
                 absl::StrCat("has ", count, " bytes")};
}

inline std::optional<Refusal> CheckByteCount(uint64_t count, const Bound& most, const FieldName& field) {
  auto refusal = CheckByteCount(count, most.value, field);
  if (refusal) refusal->limit = most.Text();
  return refusal;
}

inline std::optional<Refusal> CheckCount(uint64_t count, uint64_t most, const FieldName& field) {
  if (count <= most) return std::nullopt;
  return Refusal{Reason::kTooMany, field.Text(), absl::StrCat("<= ", most), absl::StrCat("has ", count)};
}

inline std::optional<Refusal> CheckCount(uint64_t count, const Bound& most, const FieldName& field) {
  auto refusal = CheckCount(count, most.value, field);
  if (refusal) refusal->limit = most.Text();
  return refusal;
}

// Checks a required name.
inline std::optional<Refusal> CheckName(absl::string_view name, const FieldName& field) {
  if (name.empty()) return MissingField(field.Text());
  return CheckByteCount(name.size(), Bounds::max_name_bytes(), field);
}

inline std::optional<Refusal> CheckToken(uint32_t token, uint32_t live_vocabulary, const FieldName& field, int index) {
  if (token < live_vocabulary) return std::nullopt;
  return Refusal{Reason::kOutOfRange, absl::StrCat(field.Text(), "[", index, "]"), absl::StrCat("< ", live_vocabulary),
                 absl::StrCat("token id ", token, " is not in the live vocabulary")};
}

// Turns -0 into 0. An off value then has the same bits as an absent field, also in the history hash.
inline float WithoutNegativeZero(float value) { return value == 0 ? 0.0f : value; }

}  // namespace sortition::service
