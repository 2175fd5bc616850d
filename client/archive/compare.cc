// Compares texts word by word, and names the first bit that differs.
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/archive/archive.h"
#include "client/archive/settings.h"
#include "client/archive/texts_file.h"

namespace sortition::archive {
namespace {

// Describes the first bit in which two tokens differ.
std::string FirstBit(const Token& one, const Token& other) {
  const std::vector<uint32_t> ours = WordsOf(one), theirs = WordsOf(other);
  for (size_t word = 0; word < ours.size(); ++word) {
    const uint32_t bits = ours[word] ^ theirs[word];
    if (bits == 0) continue;
    return absl::StrFormat("bit %d of the %s: %#010x and %#010x", std::countr_zero(bits), std::string(WordName(word)),
                           ours[word], theirs[word]);
  }
  return "nothing";
}

// Returns a line about a text; empty if it is equal.
std::string CompareText(const Settings& settings, uint32_t number, const TextAnswers& one, const TextAnswers& other) {
  size_t first = one.tokens.size(), differ = 0;
  for (size_t i = one.tokens.size(); i-- > 0;) {
    if (one.tokens[i] == other.tokens[i]) continue;
    first = i;
    ++differ;
  }
  const std::string name = absl::StrCat("text ", number, " (", settings.Of(number).name, "): ");
  if (differ == 0) return one.rows == other.rows ? "" : name + "the hash of its rows differs, and no row's";
  return absl::StrCat(name, differ, " of ", one.tokens.size(), " rows differ, first that of token ", first,
                      " (position ", settings.Of(number).prompt + first,
                      "): ", FirstBit(one.tokens[first], other.tokens[first]));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CompareTexts(const Files& one, const Files& other) {
  const Settings& settings = Settings::Own();
  const auto ours = DecodeTexts(settings, one.at("texts.bin")), theirs = DecodeTexts(settings, other.at("texts.bin"));
  if (!ours.ok()) return ours.status();
  if (!theirs.ok()) return theirs.status();
  std::vector<std::string> lines;
  for (uint32_t text = 0; text < settings.texts(); ++text) {
    std::string line = CompareText(settings, text, (*ours)[text], (*theirs)[text]);
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace sortition::archive
