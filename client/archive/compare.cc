// Compares texts word by word, and names the first bit that differs.
#include <bit>
#include <map>
#include <utility>

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

absl::StatusOr<Comparison> CompareTexts(const Files& one, const Files& other) {
  std::map<uint32_t, TextAnswers> texts[2];  // by number
  for (size_t side = 0; side < 2; ++side) {
    const Files& files = side == 0 ? one : other;
    const Settings settings = Settings::Own().First(TextsOfEach(files));
    auto decoded = DecodeTexts(settings, files.at("texts.bin"));
    if (!decoded.ok()) return decoded.status();
    for (size_t i = 0; i < decoded->size(); ++i) texts[side][settings.drawn()[i]] = std::move((*decoded)[i]);
  }
  Comparison comparison;
  for (const auto& [text, answers] : texts[0]) {
    const auto found = texts[1].find(text);
    if (found == texts[1].end()) continue;
    ++comparison.texts;
    std::string line = CompareText(Settings::Own(), text, answers, found->second);
    if (!line.empty()) comparison.lines.push_back(std::move(line));
  }
  return comparison;
}

}  // namespace sortition::archive
