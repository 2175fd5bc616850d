// The text model of proofs (docs/proof.md): rows of logits that are the same bits on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "service/receipt/record.h"

namespace sortition::archive {

// Thread-safe: every method is const. A row takes some microseconds.
class Model {
 public:
  static constexpr uint32_t kVocabulary = 1024;
  static constexpr uint32_t kContexts = 512;
  static constexpr uint32_t kListed = 4;  // tokens of the drafter's distribution
  static constexpr std::array<float, kListed> kProbabilities = {0.5f, 0.25f, 0.125f, 0.125f};

  explicit Model(uint32_t seed) : seed_(seed) {}

  // Returns the context of the tokens before a position, at least two.
  static uint32_t ContextOf(std::span<const uint32_t> tokens);

  // Writes the logits of a position; `row` has kVocabulary elements.
  void WriteRow(uint32_t context, uint32_t text, uint32_t position, std::span<float> row) const;

  // Returns the drafter's tokens in a context, the most probable first.
  std::array<uint32_t, kListed> Likely(uint32_t context) const;
  // Returns the number of the one among them that the drafter draws at a position.
  uint32_t DraftAt(uint32_t text, uint32_t position) const;

  std::vector<uint32_t> Prompt(uint32_t text, uint32_t length) const;

  // Returns the hash of one row of each context, which names the model.
  service::ReceiptHash ContextsHash() const;

 private:
  uint32_t PlaceKey(uint32_t text, uint32_t position) const;
  uint32_t ContextKey(uint32_t context) const;

  uint32_t seed_;
};

}  // namespace sortition::archive
