// A strict reader of JSON objects whose values are texts, numbers or null, as in log lines.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace sortition::server {

using JsonValue = std::variant<std::nullptr_t, double, std::string>;
using JsonObject = std::map<std::string, JsonValue>;

// Nothing if `text` is anything else, names a key twice, or has more behind the object than white space.
std::optional<JsonObject> ParseJson(std::string_view text);

// The text at `key`; fails the test if there is none.
std::string JsonText(const JsonObject& object, const std::string& key);

}  // namespace sortition::server
