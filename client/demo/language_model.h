// The demo's language model: trigrams of words, counted from short tales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sortition::demo {

// Returns the tales, which were written for this project: 11 texts, 15 KB, ASCII. The views stay valid for the life of
// the program.
std::vector<std::string_view> Tales();

// Cuts a text into words: runs of letters, digits and apostrophes, and any other single bytes, each with the one space
// before it. The words, joined, are the text; the views point into it.
std::vector<std::string_view> Words(std::string_view text);

// Thread-safe: every method is const.
class LanguageModel {
 public:
  static constexpr uint32_t kEnd = 0;  // the token at the end of a text, a word without letters
  static constexpr size_t kOrder = 3;  // the longest n-gram

  explicit LanguageModel(std::span<const std::string_view> texts);

  // Returns the number of tokens: the texts' words and kEnd.
  uint32_t size() const { return static_cast<uint32_t>(words_.size()); }
  const std::string& word(uint32_t token) const { return words_[token]; }

  // Returns the tokens of a text. Each of its words is in the counted texts.
  std::vector<uint32_t> Encode(std::string_view text) const;

  // Returns a row of logits, the natural logarithms of all tokens' probabilities to follow `context`, which begins at
  // the start of a text. It counts the last `order` - 1 tokens; `order` is 1 to kOrder.
  std::vector<float> Logits(std::span<const uint32_t> context, size_t order = kOrder) const;

 private:
  // The tokens that follow one context in the texts, and how often each does.
  struct Followers {
    uint32_t total = 0;
    std::map<uint32_t, uint32_t> counts;
  };

  std::vector<std::string> words_;  // by token
  std::map<std::string, uint32_t, std::less<>> tokens_;
  std::map<std::vector<uint32_t>, Followers> followers_;  // by contexts of each length below kOrder
};

}  // namespace sortition::demo
