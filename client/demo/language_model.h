// The demo's language model: interpolated Kneser-Ney n-grams over token ids, trained in memory in well under a second.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace sortition::demo {

// The logit of ids at or above live_vocabulary(): a bf16 NaN, at which a sampler that reads padding fails the row.
inline constexpr uint16_t kPaddingLogit = 0x7fc0;

// Computes P(token | context). A context is all tokens before, from the start of a text; only the last order - 1 of
// them count. A shorter context is at the start of a text, and with an empty one the token is the text's first.
//
// Thread-safe once trained: every method is const and keeps no state. Owns all it refers to. Nothing blocks.
class LanguageModel {
 public:
  static constexpr int kMaxOrder = 5;
  static constexpr uint32_t kMaxVocabulary = 65535;  // an id takes 16 bits of a context's key

  // Trains on `texts`, each a whole text of ids below `vocabulary` (at most kMaxVocabulary). `order` is the longest
  // n-gram, 1 to kMaxOrder.
  static LanguageModel Train(std::span<const std::vector<uint32_t>> texts, uint32_t vocabulary, int order = kMaxOrder);

  // The id that the model adds to its vocabulary. It follows a text's last token, and has no bytes.
  uint32_t end_of_text() const { return vocabulary_; }

  // Number of ids that can be drawn: the vocabulary and end_of_text().
  uint32_t live_vocabulary() const { return vocabulary_ + 1; }

  // Writes one row of bf16 logits: natural log-probabilities at temperature 1 plus a constant of the row. Every live id
  // is finite; the rest of the row is kPaddingLogit. `row` must hold at least live_vocabulary() elements. About 10 us
  // at 32,768 elements: the row is copied, and each token seen after the context's last id costs one logarithm.
  void Logits(std::span<const uint32_t> context, std::span<uint16_t> row) const;

  // Returns P(token | context). It is positive for each live id, and sums to 1 over them.
  double Probability(std::span<const uint32_t> context, uint32_t token) const;

 private:
  // The tokens that follow one context in the training text: P(token) = mass + backoff * P(token | context without its
  // oldest token). A token that is not listed has mass 0. The masses and the backoff sum to 1.
  struct Seen {
    uint32_t token;
    double mass;
  };
  struct Followers {
    double backoff;
    std::vector<Seen> seen;  // by token
  };

  LanguageModel(uint32_t vocabulary, int order);
  uint64_t Key(std::span<const uint32_t> context) const;
  const Followers* Find(uint64_t key, int length) const;

  uint32_t vocabulary_;
  int order_;
  std::vector<double> unigram_;  // by live id: P(token) after no context, smoothed with the uniform distribution
  std::vector<uint16_t> unigram_logit_;                             // the same as bf16 logarithms
  std::vector<absl::flat_hash_map<uint64_t, Followers>> contexts_;  // by length, then by Key; [0] stays empty
};

}  // namespace sortition::demo
