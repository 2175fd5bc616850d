// A byte-pair vocabulary learned from a text: tokens are byte strings, and every byte string can be encoded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace sortition::demo {

// Ids 0 to 255 are the single bytes; every later id joins two earlier ones, in the order of learning.
// No token crosses the end of a word: a run of letters, of digits, of punctuation or of white space, with the one space
// before it if there is one, cut every 32 bytes.
//
// Thread-safe once learned: every method is const. Owns all it refers to. Nothing blocks.
class BytePair {
 public:
  // Learns the most frequent pairs of `texts` until there are `max_tokens` tokens (at least 256) or every word is one
  // token. The same texts give the same vocabulary on every machine.
  static BytePair Learn(std::span<const std::string_view> texts, uint32_t max_tokens);

  // Number of tokens; ids are 0 to size() - 1.
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }

  // Encodes any bytes, also none and invalid UTF-8. Takes time linear in the text's length. Decode(Encode(text)) ==
  // text.
  std::vector<uint32_t> Encode(std::string_view text) const;

  // Joins the bytes of `ids`. Every id must be below size().
  std::string Decode(std::span<const uint32_t> ids) const;

 private:
  using Pair = std::pair<uint32_t, uint32_t>;

  BytePair();
  uint32_t Join(Pair pair);

  std::vector<std::string> tokens_;             // by id
  absl::flat_hash_map<Pair, uint32_t> joined_;  // a pair's id; lower ids were learned earlier and are applied first
};

}  // namespace sortition::demo
