// Small checks that all request parsers share. Each returns a refusal that names the field, or nothing.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"

namespace sortition::service {

inline Refusal MissingField(std::string field) {
  return Refusal{Reason::kMissingField, std::move(field), "", "must be set"};
}

inline Refusal NotImplemented(std::string field) {
  return Refusal{Reason::kNotImplemented, std::move(field), "",
                 "is part of the contract, but not built in this server"};
}

template <typename T>
std::optional<Refusal> CheckRange(T value, T low, T high, absl::string_view field) {
  // Written so that NaN fails.
  if (value >= low && value <= high) return std::nullopt;
  return Refusal{Reason::kOutOfRange, std::string(field), absl::StrCat(low, "..", high),
                 absl::StrCat(value, " is out of range")};
}

inline std::optional<Refusal> CheckByteCount(uint64_t count, uint64_t most, absl::string_view field) {
  if (count <= most) return std::nullopt;
  return Refusal{Reason::kTooMany, std::string(field), absl::StrCat("<= ", most, " bytes"),
                 absl::StrCat("has ", count, " bytes")};
}

// A required name of at most kMaxNameBytes.
inline std::optional<Refusal> CheckName(absl::string_view name, absl::string_view field) {
  if (name.empty()) return MissingField(std::string(field));
  return CheckByteCount(name.size(), kMaxNameBytes, field);
}

inline std::optional<Refusal> CheckCount(uint64_t count, uint64_t most, absl::string_view field) {
  if (count <= most) return std::nullopt;
  return Refusal{Reason::kTooMany, std::string(field), absl::StrCat("<= ", most), absl::StrCat("has ", count)};
}

inline std::optional<Refusal> CheckToken(uint32_t token, uint32_t live_vocabulary, absl::string_view field, int index) {
  if (token < live_vocabulary) return std::nullopt;
  return Refusal{Reason::kOutOfRange, absl::StrCat(field, "[", index, "]"), absl::StrCat("< ", live_vocabulary),
                 absl::StrCat("token id ", token, " is not in the live vocabulary")};
}

}  // namespace sortition::service
