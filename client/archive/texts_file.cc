// Little-endian words.
#include "client/archive/texts_file.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::archive {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::string_view kMagic = "sortprf1";
constexpr size_t kTokenWords = 3;
constexpr std::array<std::string_view, kTokenWords + kAnswerWords> kNames = {
    "token",       "logprob",       "hash of the row", "raw logprob",   "raw rank", "raw token 1", "raw logprob 1",
    "raw token 2", "raw logprob 2", "raw token 3",     "raw logprob 3", "entropy",  "kept count"};

void Add(uint32_t word, std::string* to) { to->append(reinterpret_cast<const char*>(&word), sizeof(word)); }

uint32_t TakeWord(std::string_view* from) {
  uint32_t word;
  std::memcpy(&word, from->data(), sizeof(word));
  from->remove_prefix(sizeof(word));
  return word;
}

std::string Start(const Settings& settings) {
  std::string file(kMagic);
  Add(static_cast<uint32_t>(settings.drawn().size()), &file);
  Add(settings.tokens(), &file);
  const service::ReceiptHash hash = service::HashBytes(settings.json());
  return file.append(hash.begin(), hash.end());
}

size_t WordsOf(const Setting& setting) { return kTokenWords + (setting.has_answers() ? kAnswerWords : 0); }

}  // namespace

void HashRows(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens, TextAnswers* answers) {
  std::string rows;
  const size_t prompt = tokens.size() - answers->tokens.size();
  for (size_t i = 0; i < answers->tokens.size(); ++i) {
    const std::string row = RowBytes(settings, text, tokens.first(prompt + i));
    std::memcpy(&answers->tokens[i].row, service::HashBytes(row).data(), sizeof(uint32_t));
    rows += row;
  }
  answers->rows = service::HashBytes(rows);
}

std::vector<uint32_t> WordsOf(const Token& token) {
  std::vector<uint32_t> words = {token.token, token.logprob, token.row};
  words.insert(words.end(), token.answers.begin(), token.answers.end());
  return words;
}

std::string_view WordName(size_t word) { return kNames[word]; }

std::string EncodeTexts(const Settings& settings, const std::vector<TextAnswers>& texts) {
  std::string file = Start(settings);
  for (const TextAnswers& text : texts) {
    file.append(text.rows.begin(), text.rows.end());
    for (const Token& token : text.tokens) {
      for (const uint32_t word : WordsOf(token)) Add(word, &file);
    }
  }
  return file;
}

absl::StatusOr<std::vector<TextAnswers>> DecodeTexts(const Settings& settings, std::string_view file) {
  const std::string start = Start(settings);
  if (!file.starts_with(start)) return absl::InvalidArgumentError("damaged: texts.bin begins as one of other settings");
  file.remove_prefix(start.size());
  uint64_t bytes = 0;
  for (const uint32_t text : settings.drawn()) {
    bytes += sizeof(service::ReceiptHash) + uint64_t{settings.tokens()} * WordsOf(settings.Of(text)) * 4;
  }
  if (file.size() != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("damaged: texts.bin has ", file.size() + start.size(), " bytes, not ", bytes + start.size()));
  }
  std::vector<TextAnswers> texts;
  for (const uint32_t number : settings.drawn()) {
    TextAnswers& text = texts.emplace_back();
    std::memcpy(text.rows.data(), file.data(), text.rows.size());
    file.remove_prefix(text.rows.size());
    for (uint32_t i = 0; i < settings.tokens(); ++i) {
      Token& token = text.tokens.emplace_back();
      token.token = TakeWord(&file);
      token.logprob = TakeWord(&file);
      token.row = TakeWord(&file);
      for (size_t at = kTokenWords; at < WordsOf(settings.Of(number)); ++at) token.answers.push_back(TakeWord(&file));
    }
  }
  return texts;
}

}  // namespace sortition::archive
