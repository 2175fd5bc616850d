// Reading of JSON.
#include "tests/server/json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace sortition::server {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::optional<JsonObject> Object() {
    JsonObject object;
    if (!Take('{')) return std::nullopt;
    do {
      const auto key = Text();
      if (!key || !Take(':')) return std::nullopt;
      const auto value = Value();
      if (!value || !object.emplace(*key, *value).second) return std::nullopt;
    } while (Take(','));
    if (!Take('}')) return std::nullopt;
    SkipSpace();
    return rest_.empty() ? std::make_optional(object) : std::nullopt;
  }

 private:
  void SkipSpace() {
    while (!rest_.empty() && std::strchr(" \t\r\n", rest_.front()) != nullptr) rest_.remove_prefix(1);
  }

  bool Take(char c) {
    SkipSpace();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::optional<JsonValue> Value() {
    SkipSpace();
    if (rest_.substr(0, 4) == "null") {
      rest_.remove_prefix(4);
      return JsonValue(nullptr);
    }
    if (!rest_.empty() && rest_.front() == '"') {
      auto text = Text();
      return text ? std::make_optional<JsonValue>(*std::move(text)) : std::nullopt;
    }
    const std::string number(rest_.substr(0, rest_.find_first_not_of("-+.0123456789eE")));
    char* end;
    const double value = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0') return std::nullopt;
    rest_.remove_prefix(number.size());
    return JsonValue(value);
  }

  std::optional<std::string> Text() {
    if (!Take('"')) return std::nullopt;
    std::string text;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return text;
      if (static_cast<unsigned char>(c) < 0x20) return std::nullopt;
      if (c != '\\') {
        text.push_back(c);
      } else if (!Escape(&text)) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  // Of the escapes only those of ASCII.
  bool Escape(std::string* text) {
    if (rest_.empty()) return false;
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (c == '"' || c == '\\') {
      text->push_back(c);
      return true;
    }
    if (c != 'u' || rest_.size() < 4 || rest_.substr(0, 2) != "00") return false;
    text->push_back(static_cast<char>(std::strtol(std::string(rest_.substr(2, 2)).c_str(), nullptr, 16)));
    rest_.remove_prefix(4);
    return true;
  }

  std::string_view rest_;
};

}  // namespace

std::optional<JsonObject> ParseJson(std::string_view text) { return Reader(text).Object(); }

std::string JsonText(const JsonObject& object, const std::string& key) {
  const auto it = object.find(key);
  const std::string* text = it == object.end() ? nullptr : std::get_if<std::string>(&it->second);
  EXPECT_NE(text, nullptr) << "no text at " << key;
  return text == nullptr ? "" : *text;
}

}  // namespace sortition::server
