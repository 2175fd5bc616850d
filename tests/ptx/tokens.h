// Words of PTX text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sortition::testing::ptx {

struct Token {
  enum class Kind : uint8_t { kWord, kNumber, kSign, kString, kEnd };
  Kind kind = Kind::kEnd;
  std::string_view text;
  uint64_t bits = 0;  // a number's: an integer, or the float after 0f or 0d
  uint32_t line = 0;
};

// Splits the text, without its comments. Throws Unknown. Tokens point into the text; the last one is kEnd.
std::vector<Token> Tokenize(std::string_view text);

}  // namespace sortition::testing::ptx
