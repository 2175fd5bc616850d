// Escapes of JSON.
#include "service/log/json_text.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sortition::server {
namespace {

// Returns the character at the start of `text` if it has two or three bytes and steers; 0 otherwise.
uint32_t SteeringAt(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  if (byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) < 0xa0) return byte(1);
  if (byte(0) == 0xd8 && byte(1) == 0x9c) return 0x61c;
  if (byte(0) != 0xe2 || (byte(1) != 0x80 && byte(1) != 0x81) || byte(2) < 0x80 || byte(2) > 0xbf) return 0;
  const uint32_t character = 0x2000 | ((byte(1) & 0x3f) << 6) | (byte(2) & 0x3f);
  const bool is_mark = character == 0x200e || character == 0x200f;
  const bool is_override = character >= 0x2028 && character <= 0x202e;
  const bool is_isolate = character >= 0x2066 && character <= 0x2069;
  return is_mark || is_override || is_isolate ? character : 0;
}

}  // namespace

void AppendJsonText(std::string_view text, std::string* out) {
  out->push_back('"');
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(c));
    } else if (const uint32_t steering = SteeringAt(text.substr(i)); steering != 0) {
      absl::StrAppendFormat(out, "\\u%04x", steering);
      i += steering < 0x800 ? 1 : 2;
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void AppendJsonNumber(double number, std::string* out) {
  if (std::isfinite(number)) {
    absl::StrAppend(out, number);
  } else {
    out->append("null");
  }
}

}  // namespace sortition::server
