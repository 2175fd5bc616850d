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

  bool Object(JsonObject* object) {
    if (!Take('{')) return false;
    do {
      std::string key;
      if (!Text(&key) || !Take(':') || object->contains(key) || !Value(&(*object)[key])) return false;
    } while (Take(','));
    if (!Take('}')) return false;
    SkipSpace();
    return rest_.empty();
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

  bool Value(JsonValue* value) {
    SkipSpace();
    if (rest_.substr(0, 4) == "null") {
      rest_.remove_prefix(4);
      *value = nullptr;
      return true;
    }
    if (!rest_.empty() && rest_.front() == '"') return Text(&value->emplace<std::string>());
    const std::string number(rest_.substr(0, rest_.find_first_not_of("-+.0123456789eE")));
    char* end;
    *value = std::strtod(number.c_str(), &end);
    rest_.remove_prefix(number.size());
    return !number.empty() && *end == '\0';
  }

  bool Text(std::string* text) {
    if (!Take('"')) return false;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        text->push_back(c);
      } else if (!Escape(text)) {
        return false;
      }
    }
    return false;
  }

  // Understands only escapes of ASCII.
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

std::optional<JsonObject> ParseJson(std::string_view text) {
  JsonObject object;
  if (!Reader(text).Object(&object)) return std::nullopt;
  return object;
}

std::string JsonText(const JsonObject& object, const std::string& key) {
  const auto it = object.find(key);
  const std::string* text = it == object.end() ? nullptr : std::get_if<std::string>(&it->second);
  EXPECT_NE(text, nullptr) << "no text at " << key;
  return text == nullptr ? "" : *text;
}

}  // namespace sortition::server
