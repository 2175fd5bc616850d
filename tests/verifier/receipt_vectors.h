// Files of receipts, right ones and wrong ones, with the findings of a verifier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/receipts/receipt_check.h"

namespace sortition::testing {

// A line of the vectors: a problem's name, and the chain and receipt that it names, if any.
struct ExpectedProblem {
  std::string name;
  std::string chain = {};
  std::optional<uint64_t> index = {};
};

struct ReceiptVector {
  std::string name;
  std::string records;
  std::vector<service::ReceiptPublicKey> keys;
  std::vector<client::SeedOpening> seeds;
  std::vector<ExpectedProblem> problems;
  uint64_t receipts = 0;
  uint64_t signed_receipts = 0;
  uint64_t drawn = 0;
};

// Returns the vectors; each call returns the same.
std::vector<ReceiptVector> MakeReceiptVectors();

// Returns tests/verifier/receipts_vectors.json as it should be.
std::string ReceiptVectorsText();

// A file whose steps had masks, with a verifier's other inputs.
struct MaskVector {
  ReceiptVector file;
  std::vector<std::vector<uint32_t>> masks;  // packed
  std::vector<std::vector<float>> rows;      // the logits of each receipt
  uint64_t compared = 0;                     // rows that agree
};
std::vector<MaskVector> MakeMaskVectors();

// Returns tests/verifier/receipt_masks_vectors.json as it should be.
std::string MaskVectorsText();

}  // namespace sortition::testing
