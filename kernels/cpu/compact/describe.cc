// Sums and ranks of a distribution.
#include "kernels/cpu/compact/describe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

TokenBits BitsOf(Candidate candidate) { return {candidate.token(), law::KeyBits(candidate.key())}; }

void FillTop(std::span<Candidate> first, Distribution* distribution) {
  std::sort(first.begin(), first.end(), std::greater<>());
  distribution->top.reserve(first.size());
  for (const Candidate& candidate : first) distribution->top.push_back(BitsOf(candidate));
}

// All kept tokens, in no particular order.
std::span<Candidate> AllKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch) {
  if (!kept.listed.empty()) return kept.listed;
  return CollectNotAfter(kernels, row, kept.last, scratch, &scratch->kept);
}

// A token whose place is wanted, with its index.
struct Wanted {
  Candidate token;
  uint32_t index;
  uint32_t rank = 0;
};

// Counts the tokens of a row by the distinct keys of given ones: those with each of these keys, and those between two.
// A table over the span of their logits says where to look: most of its buckets have one given key or none.
class KeyCounter {
 public:
  explicit KeyCounter(std::span<const Wanted> given) {
    for (const Wanted& wanted : given) keys_.push_back(wanted.token.key());
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    // Outliers do not widen the span: they lie in its first and last bucket.
    const size_t outliers = (keys_.size() + 32) / 64;
    const size_t buckets = kBucketsForEach * keys_.size() + 1;
    lowest_ = LogitOf(keys_[outliers]);
    const float span = LogitOf(keys_[keys_.size() - 1 - outliers]) - lowest_;
    last_ = float(buckets - 1);
    scale_ = span > 0 ? last_ / span : 0;
    is_given_.resize(buckets);
    others_.resize(buckets);
    for (uint32_t at = 0; at < keys_.size(); ++at) {
      const uint32_t bucket = BucketOf(keys_[at]);
      starts_.resize(bucket + 1, at);
      is_given_[bucket] = 1;
    }
    starts_.resize(buckets + 1, uint32_t(keys_.size()));
    keys_.push_back(~0u);
    counts_.resize(2 * keys_.size());
  }

  static constexpr size_t kMost = 1024;  // keys at a time

  uint32_t lowest_key() const { return keys_[0]; }

  // Counts up to kMost keys, 0 for no token. The `given` ones among them have their place there as their rank,
  // ascending; it becomes the number of equal keys that were counted so far.
  void Count(std::span<const uint32_t> keys, std::span<Wanted> given) {
    uint32_t buckets[kMost];
    uint32_t close[kMost];  // the keys that share a bucket with a given one
    for (size_t i = 0; i < keys.size(); ++i) buckets[i] = BucketOf(keys[i]);
    size_t count = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      ++others_[buckets[i]];
      close[count] = uint32_t(i);
      count += is_given_[buckets[i]];
    }
    auto next = given.begin();
    for (const uint32_t i : std::span(close, count)) {
      const uint32_t number = ++counts_[CellOf(keys[i], buckets[i])];
      for (; next != given.end() && next->rank == i; ++next) next->rank = number;
    }
  }

  // Adds to each rank the number of tokens with a larger key.
  void AddLarger(std::span<Wanted> given) {
    for (size_t bucket = 0; bucket < others_.size(); ++bucket) {
      if (!is_given_[bucket]) counts_[2 * starts_[bucket]] += others_[bucket];
    }
    uint32_t larger = 0;
    for (size_t cell = counts_.size(); cell-- > 0;) counts_[cell] = larger += counts_[cell];
    for (Wanted& wanted : given) {
      wanted.rank += counts_[CellOf(wanted.token.key(), BucketOf(wanted.token.key())) + 1];
    }
  }

 private:
  static constexpr size_t kBucketsForEach = 16;  // given key

  // Without branches, which no processor could foresee.
  static float LogitOf(uint32_t key) {
    return std::bit_cast<float>(key ^ (~uint32_t(int32_t(key) >> 31) | 0x80000000u));
  }

  // Never falls from a key to a larger one, since rounding never changes an order. 0 for the key 0, which gives a NaN.
  uint32_t BucketOf(uint32_t key) const {
    const float bucket = (LogitOf(key) - lowest_) * scale_;
    return uint32_t(int32_t(std::min(std::max(0.0f, bucket), last_)));
  }

  // Returns 2 i + 1 for the given key i, 2 i for keys below it and above the one before it.
  uint32_t CellOf(uint32_t key, uint32_t bucket) const {
    uint32_t at = starts_[bucket];
    at += keys_[at] < key;
    if (keys_[at] < key) [[unlikely]] {
      at = uint32_t(std::lower_bound(keys_.begin() + at, keys_.begin() + starts_[bucket + 1], key) - keys_.begin());
    }
    return 2 * at + (keys_[at] == key);
  }

  std::vector<uint32_t> keys_;  // ascending, with an end that is above all keys
  float lowest_ = 0;
  float scale_ = 0;
  float last_ = 0;                 // the last bucket
  std::vector<uint8_t> is_given_;  // by bucket, 1 if a given key lies in it
  std::vector<uint32_t> others_;   // by bucket, the number of tokens, unless a given key lies in it
  std::vector<uint32_t> starts_;   // by bucket, the index of the first given key of it or of a later one
  std::vector<uint32_t> counts_;   // by cell
};

// Finds the ranks of tokens of the row in one pass over the groups that have one or a larger token.
void CountRanks(const Kernels& kernels, const RowView& row, std::span<Wanted> given, Scratch* scratch) {
  constexpr uint32_t kGroupsAtOnce = KeyCounter::kMost / law::kGroupSize;
  KeyCounter counter(given);
  std::ranges::sort(given, {}, [](const Wanted& wanted) { return wanted.token.token(); });
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, counter.lowest_key(), groups);
  uint32_t keys[KeyCounter::kMost];
  std::span<Wanted> left = given;
  auto edited = row.edited.begin();
  for (uint32_t first = 0; first < count; first += kGroupsAtOnce) {
    const uint32_t some = std::min(kGroupsAtOnce, count - first);
    kernels.SentKeys(row, groups + first, some, keys);
    size_t given_here = 0;
    for (uint32_t i = 0; i < some; ++i) {
      const uint32_t first_token = groups[first + i] * law::kGroupSize;
      const auto place = [&](uint32_t token) { return i * law::kGroupSize + token - first_token; };
      for (; edited != row.edited.end() && edited->token() < first_token + law::kGroupSize; ++edited) {
        if (edited->token() >= first_token) keys[place(edited->token())] = edited->key();
      }
      for (; given_here < left.size() && left[given_here].token.token() < first_token + law::kGroupSize; ++given_here) {
        left[given_here].rank = place(left[given_here].token.token());
      }
    }
    counter.Count({keys, some * law::kGroupSize}, left.first(given_here));
    left = left.subspan(given_here);
  }
  counter.AddLarger(given);
}

// Finds the places of all `tokens`.
void FillPlaces(const Kernels& kernels, const RowView& row, const Kept& kept, std::span<const Candidate> tokens,
                Scratch* scratch, std::vector<TokenPlace>* places) {
  constexpr size_t kFew = 24;  // ranks of more tokens than these are counted together
  places->assign(tokens.size(), {law::kMaskedBits, 0});
  std::vector<Wanted> known;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].key() != 0 && kept.Has(tokens[i])) known.push_back({tokens[i], i});
  }
  const bool are_few = known.size() <= kFew;
  if (!are_few && kept.listed.empty()) {
    CountRanks(kernels, row, known, scratch);
  } else if (!are_few) {
    std::ranges::sort(kept.listed, std::greater<>());
  }
  for (Wanted& wanted : known) {
    const Candidate token = wanted.token;
    if (!kept.listed.empty()) {
      wanted.rank =
          uint32_t(are_few ? std::ranges::count_if(kept.listed, [&](Candidate c) { return c >= token; })
                           : std::ranges::upper_bound(kept.listed, token, std::greater<>()) - kept.listed.begin());
    } else if (are_few) {
      wanted.rank = NumberOfTokens(kernels, row, token, scratch);
    }
    (*places)[wanted.index] = {law::KeyBits(token.key()), wanted.rank};
  }
}

void FillTopOf(std::span<Candidate> listed, uint32_t top, Distribution* distribution) {
  const size_t count = std::min<size_t>(top, listed.size());
  std::nth_element(listed.begin(), listed.begin() + ptrdiff_t(count - 1), listed.end(), std::greater<>());
  FillTop(listed.first(count), distribution);
}

}  // namespace

void Describe(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept, Candidate chosen,
              uint32_t top, std::span<const Candidate> requested, Scratch* scratch, Distribution* distribution) {
  distribution->max_bits = law::KeyBits(row.max_key);
  std::vector<TokenPlace> place;
  FillPlaces(kernels, row, kept, {&chosen, 1}, scratch, &place);
  distribution->chosen = {chosen.token(), place[0].bits};
  distribution->rank = place[0].rank;
  if (!requested.empty()) FillPlaces(kernels, row, kept, requested, scratch, &distribution->requested);
  distribution->weight_sum = WeighKept(kernels, row, scale, kept, scratch);
  if (kept.listed.empty()) {
    if (top == 0) return;
    // Kept tokens come first in order, so the first tokens of the row are the first kept ones.
    std::span<Candidate> first = SelectFirst(kernels, row, top, kept.last.key(), scratch, &scratch->leading);
    const auto end = std::partition(first.begin(), first.end(), [&](Candidate c) { return kept.Has(c); });
    FillTop(first.first(size_t(end - first.begin())), distribution);
  } else if (top != 0) {
    FillTopOf(kept.listed, top, distribution);
  }
}

void DescribePointMass(Candidate first, Candidate chosen, uint32_t top, std::span<const Candidate> requested,
                       Distribution* distribution) {
  const auto place_of = [&](Candidate c) {
    return c == first ? TokenPlace{law::KeyBits(first.key()), 1} : TokenPlace{law::kMaskedBits, 0};
  };
  distribution->max_bits = law::KeyBits(first.key());
  distribution->weight_sum = law::kUnitWeight;
  distribution->chosen = {chosen.token(), place_of(chosen).bits};
  distribution->rank = place_of(chosen).rank;
  if (top != 0) distribution->top.push_back(BitsOf(first));
  for (const Candidate& candidate : requested) distribution->requested.push_back(place_of(candidate));
}

uint32_t CountKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch) {
  return kept.listed.empty() ? NumberOfTokens(kernels, row, kept.last, scratch) : uint32_t(kept.listed.size());
}

void ListKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch,
              std::vector<TokenBits>* tokens) {
  const std::span<const Candidate> all = AllKept(kernels, row, kept, scratch);
  tokens->reserve(all.size());
  for (const Candidate& candidate : all) tokens->push_back(BitsOf(candidate));
  // A long list ascends already, up to its edited tokens.
  if (!std::ranges::is_sorted(*tokens, {}, &TokenBits::token)) std::ranges::sort(*tokens, {}, &TokenBits::token);
}

EntropySums SumEntropy(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                       Scratch* scratch) {
  EntropySums sums;
  for (const Candidate& candidate : AllKept(kernels, row, kept, scratch)) {
    const uint32_t t = DistanceOfKey(candidate.key(), scale);
    const uint64_t weight = law::Weight(t);
    sums.weights += weight;
    sums.surplus += law::Surplus(weight, t);
  }
  return sums;
}

}  // namespace sortition::kernels::cpu
