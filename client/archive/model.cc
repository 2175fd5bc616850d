// Integers modulo 2^32, and one conversion of 24 bits to f32, which is exact.
#include "client/archive/model.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "kernels/check.h"

namespace sortition::archive {
namespace {

constexpr uint32_t kStep = 0x9e3779b9;

constexpr uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6b;
  x ^= x >> 13;
  x *= 0xc2b2ae35;
  return x ^ x >> 16;
}

// Returns 64ths of the octaves by which x is below 2^32: 1 to 1536.
uint32_t Surprise(uint32_t x) {
  return 9664 - (std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(x >> 8 | 1))) >> 17);
}

}  // namespace

uint32_t Model::ContextOf(std::span<const uint32_t> tokens) {
  SORTITION_CHECK(tokens.size() >= 2);
  return (tokens.back() & 127) | (tokens[tokens.size() - 2] & 3) << 7;
}

uint32_t Model::ContextKey(uint32_t context) const { return Mix(seed_ ^ (context + 1)); }

uint32_t Model::PlaceKey(uint32_t text, uint32_t position) const {
  return Mix(seed_ ^ (uint32_t{1} << 31 | text << 16 | position));
}

void Model::WriteRow(uint32_t context, uint32_t text, uint32_t position, std::span<float> row) const {
  const uint32_t at_context = ContextKey(context), at_place = PlaceKey(text, position);
  for (uint32_t id = 0; id < kVocabulary; ++id) {
    const uint32_t surprises = 4 * Surprise(Mix(at_context + id * kStep)) + 2 * Surprise(Mix(at_place + id * kStep));
    row[id] = static_cast<float>(static_cast<int32_t>(surprises) - 2048) / 256;
  }
}

std::array<uint32_t, Model::kListed> Model::Likely(uint32_t context) const {
  const uint32_t key = ContextKey(context);
  std::array<uint64_t, kVocabulary> order;  // surprise, then the lower id
  for (uint32_t id = 0; id < kVocabulary; ++id) order[id] = uint64_t{Surprise(Mix(key + id * kStep))} << 32 | ~id;
  std::partial_sort(order.begin(), order.begin() + kListed, order.end(), std::greater<>());
  std::array<uint32_t, kListed> tokens;
  for (size_t i = 0; i < kListed; ++i) tokens[i] = ~static_cast<uint32_t>(order[i]);
  return tokens;
}

uint32_t Model::DraftAt(uint32_t text, uint32_t position) const {
  const uint32_t v = Mix(PlaceKey(text, position) + kVocabulary) & 7;
  return v < 4 ? 0 : v < 6 ? 1 : v - 4;
}

std::vector<uint32_t> Model::Prompt(uint32_t text, uint32_t length) const {
  std::vector<uint32_t> tokens(length);
  for (uint32_t j = 0; j < length; ++j) tokens[j] = Mix(Mix(seed_ ^ ~text) + j) & (kVocabulary - 1);
  return tokens;
}

service::ReceiptHash Model::ContextsHash() const {
  std::vector<float> rows(size_t{kContexts} * kVocabulary);
  for (uint32_t context = 0; context < kContexts; ++context) {
    WriteRow(context, 0, context, std::span(rows).subspan(size_t{context} * kVocabulary, kVocabulary));
  }
  return service::HashBytes({reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float)});
}

}  // namespace sortition::archive
