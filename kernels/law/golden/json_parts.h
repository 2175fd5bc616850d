// JSON as text, by parts. 64-bit numbers are decimal strings, since JSON readers may cut numbers at 53 bits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace sortition::law {

inline std::string Cat(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text.append(part);
  return text;
}

inline std::string Joined(const std::vector<std::string>& items, std::string_view separator) {
  std::string text;
  for (const std::string& item : items) {
    if (!text.empty()) text.append(separator);
    text.append(item);
  }
  return text;
}

inline std::string Number(uint32_t x) { return std::to_string(x); }
inline std::string Quoted(std::string_view text) { return Cat({"\"", text, "\""}); }
inline std::string Wide(uint64_t x) { return Quoted(std::to_string(x)); }
inline std::string WideSigned(uint64_t x) { return Quoted(std::to_string(int64_t(x))); }
inline std::string Truth(bool x) { return x ? "true" : "false"; }
inline std::string List(const std::vector<std::string>& items) { return Cat({"[", Joined(items, ", "), "]"}); }
inline std::string Field(std::string_view name, std::string_view value) { return Cat({Quoted(name), ": ", value}); }
inline std::string Object(const std::vector<std::string>& fields) { return Cat({"{", Joined(fields, ", "), "}"}); }

inline std::string Numbers(const std::vector<uint32_t>& numbers) {
  std::vector<std::string> items;
  for (const uint32_t x : numbers) items.push_back(Number(x));
  return List(items);
}

}  // namespace sortition::law
