// Learns and applies byte-pair merges.
#include "client/demo/byte_pair.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <queue>
#include <tuple>

#include "kernels/check.h"

namespace sortition::demo {
namespace {

// Upper bound on a word's length. The cost of a word is quadratic in it, so that this keeps Encode linear.
constexpr size_t kMaxWordBytes = 32;

enum class ByteClass { kLetter, kDigit, kSpace, kPunctuation };

// Classifies a byte independently of the locale. Bytes above ASCII count as letters, so that a UTF-8 sequence stays
// within a word.
ByteClass Classify(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '\'') {
    return ByteClass::kLetter;
  }
  if (byte >= '0' && byte <= '9') return ByteClass::kDigit;
  if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return ByteClass::kSpace;
  return ByteClass::kPunctuation;
}

// Cuts the first word off a text that is not empty.
std::string_view TakeWord(std::string_view& text) {
  const size_t start = text.size() > 1 && text[0] == ' ' && Classify(text[1]) != ByteClass::kSpace ? 1 : 0;
  const ByteClass kind = Classify(text[start]);
  size_t end = start + 1;
  while (end < text.size() && end < kMaxWordBytes && Classify(text[end]) == kind) {
    // The last space of a run belongs to the word that follows it.
    if (text[end] == ' ' && end + 1 < text.size() && Classify(text[end + 1]) != ByteClass::kSpace) break;
    ++end;
  }
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

std::vector<uint32_t> Bytes(std::string_view word) {
  std::vector<uint32_t> ids;
  for (char c : word) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

void Replace(std::vector<uint32_t>& ids, std::pair<uint32_t, uint32_t> pair, uint32_t joined) {
  size_t out = 0;
  for (size_t in = 0; in < ids.size(); ++out) {
    const bool match = in + 1 < ids.size() && ids[in] == pair.first && ids[in + 1] == pair.second;
    ids[out] = match ? joined : ids[in];
    in += match ? 2 : 1;
  }
  ids.resize(out);
}

// The distinct words of a text after the merges so far, and the number of occurrences of each pair in them.
class PairCounts {
 public:
  using Pair = std::pair<uint32_t, uint32_t>;

  explicit PairCounts(std::span<const std::string_view> texts) {
    std::map<std::string_view, int64_t> counts;
    for (std::string_view text : texts) {
      while (!text.empty()) ++counts[TakeWord(text)];
    }
    for (const auto& [word, count] : counts) {
      words_.push_back({Bytes(word), count});
      AddPairs(words_.size() - 1, +1);
    }
  }

  // Finds the most frequent pair, the one with the lowest ids among equals. False if every word is one token.
  bool MostFrequent(Pair& pair) {
    while (!candidates_.empty()) {
      const auto [count, left, right] = candidates_.top();
      pair = {~left, ~right};
      const int64_t current = pairs_[pair].count;
      if (count == current) return true;
      candidates_.pop();
      if (count > current && current > 0) Offer(pair, current);
    }
    return false;
  }

  void Merge(Pair pair, uint32_t joined) {
    const std::vector<size_t> words = pairs_[pair].words;
    for (size_t word : words) {
      AddPairs(word, -1);
      Replace(words_[word].ids, pair, joined);
      AddPairs(word, +1);
    }
  }

 private:
  struct Word {
    std::vector<uint32_t> ids;
    int64_t count;
  };
  struct Occurrences {
    int64_t count = 0;
    std::vector<size_t> words;  // all words with the pair, and some that had it; may repeat
  };

  void AddPairs(size_t index, int sign) {
    const Word& word = words_[index];
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      const Pair pair{word.ids[i], word.ids[i + 1]};
      Occurrences& occurrences = pairs_[pair];
      occurrences.count += sign * word.count;
      if (sign < 0) continue;
      occurrences.words.push_back(index);
      Offer(pair, occurrences.count);
    }
  }

  void Offer(Pair pair, int64_t count) { candidates_.emplace(count, ~pair.first, ~pair.second); }

  std::vector<Word> words_;
  absl::flat_hash_map<Pair, Occurrences> pairs_;
  // Counts that may be out of date. Such an entry is dropped or corrected when it is popped. A pair's current count is
  // never above all of its entries. The ids are inverted so that lower ones are popped first.
  std::priority_queue<std::tuple<int64_t, uint32_t, uint32_t>> candidates_;
};

}  // namespace

BytePair::BytePair() {
  for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
}

uint32_t BytePair::Join(Pair pair) {
  const uint32_t id = size();
  joined_.emplace(pair, id);
  tokens_.push_back(tokens_[pair.first] + tokens_[pair.second]);
  return id;
}

BytePair BytePair::Learn(std::span<const std::string_view> texts, uint32_t max_tokens) {
  BytePair vocabulary;
  SORTITION_CHECK(max_tokens >= vocabulary.size());
  PairCounts counts(texts);
  Pair pair;
  while (vocabulary.size() < max_tokens && counts.MostFrequent(pair)) counts.Merge(pair, vocabulary.Join(pair));
  return vocabulary;
}

std::vector<uint32_t> BytePair::Encode(std::string_view text) const {
  std::vector<uint32_t> encoded;
  while (!text.empty()) {
    std::vector<uint32_t> ids = Bytes(TakeWord(text));
    for (;;) {
      uint32_t first = size();
      Pair pair;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = joined_.find({ids[i], ids[i + 1]});
        if (found == joined_.end() || found->second >= first) continue;
        first = found->second;
        pair = found->first;
      }
      if (first == size()) break;
      Replace(ids, pair, first);
    }
    encoded.insert(encoded.end(), ids.begin(), ids.end());
  }
  return encoded;
}

std::string BytePair::Decode(std::span<const uint32_t> ids) const {
  std::string text;
  for (uint32_t id : ids) {
    SORTITION_CHECK(id < size());
    text += tokens_[id];
  }
  return text;
}

}  // namespace sortition::demo
