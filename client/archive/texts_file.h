// The file texts.bin of an archive (docs/proof.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/archive/settings.h"
#include "service/receipt/record.h"

namespace sortition::archive {

inline constexpr int kRawTop = 3;
inline constexpr size_t kAnswerWords = 10;

struct Token {
  uint32_t token = 0;
  uint32_t logprob = 0;           // bits
  uint32_t row = 0;               // the first 4 bytes of its row's hash
  std::vector<uint32_t> answers;  // kAnswerWords where the setting has answers
  bool operator==(const Token&) const = default;
};

struct TextAnswers {
  service::ReceiptHash rows = {};
  std::vector<Token> tokens;
};

// Sets the hashes of a text's rows. `tokens`: prompt and output.
void HashRows(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens, TextAnswers* answers);

// `texts`: those of settings.drawn(), in this order.
std::string EncodeTexts(const Settings& settings, const std::vector<TextAnswers>& texts);
// Reads a file of these settings' drawn texts. The error says what is wrong.
absl::StatusOr<std::vector<TextAnswers>> DecodeTexts(const Settings& settings, std::string_view file);

// Returns the name of a token's word, as its place in the file: token, logprob, row, then the answers.
std::string_view WordName(size_t word);
// Returns the token's words in that order.
std::vector<uint32_t> WordsOf(const Token& token);

}  // namespace sortition::archive
