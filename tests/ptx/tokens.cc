// Words begin with a letter, or with a sign that can begin a name of PTX.
#include "tests/ptx/tokens.h"

#include <charconv>
#include <string>

#include "tests/ptx/program.h"

namespace sortition::testing::ptx {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool BeginsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' || c == '.';
}
bool ContinuesWord(char c) { return BeginsWord(c) || IsDigit(c); }

uint64_t NumberOf(std::string_view text, uint32_t line) {
  int base = 10;
  std::string_view digits = text;
  if (text.size() > 2 && text[0] == '0' && !IsDigit(text[1])) {
    base = 16;
    digits.remove_prefix(2);
    if (text[1] != 'x' && text[1] != 'f' && text[1] != 'd') digits = "?";
  }
  uint64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), bits, base);
  if (error != std::errc() || end != digits.end()) {
    throw Unknown("line " + std::to_string(line) + ": number " + std::string(text));
  }
  return bits;
}

}  // namespace

std::vector<Token> Tokenize(std::string_view text) {
  std::vector<Token> tokens;
  uint32_t line = 1;
  size_t at = 0;
  const auto take_while = [&](const auto& belongs) {
    const size_t first = at;
    while (at < text.size() && belongs(text[at])) ++at;
    return text.substr(first, at - first);
  };
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n') {
      ++line;
      ++at;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at;
    } else if (text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"') {
      const size_t end = std::min(text.find('"', at + 1), text.size() - 1);
      tokens.push_back({Token::Kind::kString, text.substr(at + 1, end - at - 1), 0, line});
      at = end + 1;
    } else if (IsDigit(c)) {
      const std::string_view number = take_while([](char d) { return ContinuesWord(d) && d != '.'; });
      tokens.push_back({Token::Kind::kNumber, number, NumberOf(number, line), line});
    } else if (BeginsWord(c)) {
      tokens.push_back({Token::Kind::kWord, take_while(ContinuesWord), 0, line});
    } else if (std::string_view("{}()[],;:@!|+-=<>").find(c) != std::string_view::npos) {
      tokens.push_back({Token::Kind::kSign, text.substr(at, 1), 0, line});
      ++at;
    } else {
      throw Unknown("line " + std::to_string(line) + ": character " + std::string(1, c));
    }
  }
  tokens.push_back({Token::Kind::kEnd, "", 0, line});
  return tokens;
}

}  // namespace sortition::testing::ptx
