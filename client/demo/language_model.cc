// Trains and evaluates the demo's n-grams.
#include "client/demo/language_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <map>

#include "kernels/check.h"

namespace sortition::demo {
namespace {

// Discount of each count, which is given to the shorter context, by the context's length less one. It is small for
// short contexts, so that a phrase which leaves one sentence of the corpus enters another one instead of continuing
// with an arbitrary word. 0.85 throughout would predict held-out texts better (perplexity 129 instead of 181), but
// reads worse when sampled.
constexpr std::array<double, LanguageModel::kMaxOrder - 1> kDiscounts = {0.3, 0.5, 0.7, 0.8};

// Share of the uniform distribution in the unigram. It keeps every token possible, and unseen bytes very rare.
constexpr double kUniform = 0.001;

constexpr int kIdBits = 16;
static_assert(LanguageModel::kMaxVocabulary < 1u << kIdBits);
static_assert((LanguageModel::kMaxOrder - 1) * kIdBits <= 64);

// Returns the newest `length` ids of a context's key.
constexpr uint64_t Newest(uint64_t key, int length) {
  return length * kIdBits >= 64 ? key : key & ((uint64_t{1} << (length * kIdBits)) - 1);
}

constexpr uint64_t Append(uint64_t key, uint32_t id) { return key << kIdBits | id; }

// Sorted by context and token, so that every sum below is taken in one order.
using Counts = std::map<uint64_t, std::map<uint32_t, int64_t>>;

// Counts how often each token follows each context of `length` ids. A text starts after `length` ends of text.
Counts CountFollowers(std::span<const std::vector<uint32_t>> texts, uint32_t end_of_text, int length) {
  uint64_t start = 0;
  for (int i = 0; i < length; ++i) start = Append(start, end_of_text);
  Counts counts;
  for (const std::vector<uint32_t>& text : texts) {
    uint64_t context = start;
    for (uint32_t token : text) {
      SORTITION_CHECK(token < end_of_text);
      ++counts[context][token];
      context = Newest(Append(context, token), length);
    }
    ++counts[context][end_of_text];
  }
  return counts;
}

// Returns Kneser-Ney's counts for contexts shorter by one: the number of longer contexts in which the token was seen.
Counts CountContexts(const Counts& longer, int length) {
  Counts counts;
  for (const auto& [context, tokens] : longer) {
    for (const auto& [token, count] : tokens) ++counts[Newest(context, length)][token];
  }
  return counts;
}

int64_t Sum(const std::map<uint32_t, int64_t>& tokens) {
  int64_t sum = 0;
  for (const auto& [token, count] : tokens) sum += count;
  return sum;
}

// Rounds to nearest, ties to even. `value` is finite.
uint16_t ToBFloat16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

LanguageModel::LanguageModel(uint32_t vocabulary, int order)
    : vocabulary_(vocabulary), order_(order), contexts_(static_cast<size_t>(order)) {
  SORTITION_CHECK(vocabulary <= kMaxVocabulary);
  SORTITION_CHECK(order >= 1 && order <= kMaxOrder);
}

LanguageModel LanguageModel::Train(std::span<const std::vector<uint32_t>> texts, uint32_t vocabulary, int order) {
  LanguageModel model(vocabulary, order);
  SORTITION_CHECK(!texts.empty());
  Counts counts = CountFollowers(texts, model.end_of_text(), order - 1);
  for (int length = order - 1; length > 0; --length) {
    const double discount = kDiscounts[static_cast<size_t>(length - 1)];
    for (const auto& [context, tokens] : counts) {
      const auto total = static_cast<double>(Sum(tokens));
      Followers& followers = model.contexts_[length][context];
      followers.backoff = discount * static_cast<double>(tokens.size()) / total;
      for (const auto& [token, count] : tokens) {
        followers.seen.push_back({token, (static_cast<double>(count) - discount) / total});
      }
    }
    counts = CountContexts(counts, length - 1);
  }
  const std::map<uint32_t, int64_t>& tokens = counts.at(0);
  const auto total = static_cast<double>(Sum(tokens));
  model.unigram_.assign(model.live_vocabulary(), kUniform / model.live_vocabulary());
  for (const auto& [token, count] : tokens)
    model.unigram_[token] += (1 - kUniform) * static_cast<double>(count) / total;
  for (double probability : model.unigram_) model.unigram_logit_.push_back(ToBFloat16(std::log(probability)));
  return model;
}

uint64_t LanguageModel::Key(std::span<const uint32_t> context) const {
  const size_t length = static_cast<size_t>(order_ - 1);
  uint64_t key = 0;
  for (size_t i = context.size(); i < length; ++i) key = Append(key, end_of_text());
  for (uint32_t id : context.last(std::min(length, context.size()))) {
    SORTITION_CHECK(id < live_vocabulary());
    key = Append(key, id);
  }
  return key;
}

const LanguageModel::Followers* LanguageModel::Find(uint64_t key, int length) const {
  const auto found = contexts_[static_cast<size_t>(length)].find(Newest(key, length));
  return found == contexts_[static_cast<size_t>(length)].end() ? nullptr : &found->second;
}

// Dividing P by the product of the backoffs leaves the unigram's term as it is, so a row is the unigram row except
// where a context has seen a token. A token that follows a context also follows each shorter one, so only the tokens
// after the newest id can differ.
void LanguageModel::Logits(std::span<const uint32_t> context, std::span<uint16_t> row) const {
  SORTITION_CHECK(row.size() >= live_vocabulary());
  std::fill(std::copy(unigram_logit_.begin(), unigram_logit_.end(), row.begin()), row.end(), kPaddingLogit);
  const uint64_t key = Key(context);
  std::vector<double> scaled = unigram_;
  double backoffs = 1;
  for (int length = 1; length < order_; ++length) {
    const Followers* followers = Find(key, length);
    if (followers == nullptr) break;
    backoffs *= followers->backoff;
    for (const Seen& seen : followers->seen) scaled[seen.token] += seen.mass / backoffs;
  }
  const Followers* newest = order_ > 1 ? Find(key, 1) : nullptr;
  if (newest == nullptr) return;
  for (const Seen& seen : newest->seen) row[seen.token] = ToBFloat16(std::log(scaled[seen.token]));
}

double LanguageModel::Probability(std::span<const uint32_t> context, uint32_t token) const {
  SORTITION_CHECK(token < live_vocabulary());
  const uint64_t key = Key(context);
  double probability = unigram_[token];
  for (int length = 1; length < order_; ++length) {
    const Followers* followers = Find(key, length);
    if (followers == nullptr) break;
    const auto seen = std::lower_bound(followers->seen.begin(), followers->seen.end(), token,
                                       [](const Seen& entry, uint32_t id) { return entry.token < id; });
    const bool found = seen != followers->seen.end() && seen->token == token;
    probability = (found ? seen->mass : 0) + followers->backoff * probability;
  }
  return probability;
}

}  // namespace sortition::demo
