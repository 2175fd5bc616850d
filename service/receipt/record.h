// The records of receipts (docs/receipts.md): their bytes, their hashes, and the commitment to a seed. The service
// writes them, and verifiers read them.
//
// Every function here is pure and thread-safe. No record holds a seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/row.h"

namespace sortition::service {

using ReceiptHash = std::array<uint8_t, 32>;
using ReceiptChainId = std::array<uint8_t, 16>;
using ReceiptSalt = std::array<uint8_t, 16>;
using ReceiptPublicKey = std::array<uint8_t, 32>;

enum class ReceiptRecord : uint8_t { kOpening = 1, kReceipt = 2, kSignature = 3 };

inline constexpr size_t kRecordHeaderBytes = 5;
inline constexpr uint32_t kMaxRecordBytes = 1u << 24;  // of a body
// Larger kept sets are counted and not listed.
inline constexpr uint32_t kMaxReceiptTokens = 4096;

// The integers that the parameters became, of one phase (kernels/law/parameters.h). A verifier that takes them needs no
// rule for rounding floats.
struct ReceiptIntegers {
  bool greedy = false;
  uint32_t repetition = 0;  // f32 bits; 0: off
  uint32_t inverse_repetition = 0;
  std::vector<std::array<uint32_t, 5>>
      stages;  // number and operands (kernels/law/functions/stages.inc); none if greedy
  bool operator==(const ReceiptIntegers&) const = default;
};

// The body of a record that begins a chain.
struct ReceiptOpening {
  uint32_t law_version = 0;
  uint32_t vocabulary = 0;
  uint32_t live_vocabulary = 0;
  uint32_t choice_index = 0;
  bool has_watermark = false;
  std::array<uint8_t, 16> nonce = {};
  ReceiptHash commitment = {};
  std::string request_id;
  std::vector<uint32_t> parameters;  // words (service/wire/receipt_words.h)
  // Begins with those outside of phases; those of each phase follow. Empty: not stated, as in older files.
  std::vector<ReceiptIntegers> integers;
  bool operator==(const ReceiptOpening&) const = default;
};

enum class ReceiptMethod : uint32_t { kRace = 1, kGreedy = 2, kAcceptedDraft = 3, kInPlaceOfDraft = 4 };

// The body of a record of one token.
struct Receipt {
  ReceiptChainId chain = {};
  ReceiptHash previous = {};
  uint64_t index = 0;
  uint64_t step_id = 0;
  std::optional<uint64_t> history_hash;
  uint32_t position = 0;
  uint32_t offset = 0;
  bool lists_kept = false;
  ReceiptMethod method = ReceiptMethod::kRace;
  uint32_t draw_salt = 0;
  uint32_t temperature = 0;
  uint32_t token = 0;
  uint32_t logprob_bits = 0;
  uint32_t kept_count = 0;
  std::vector<kernels::TokenBits> kept;  // ids ascending; empty without lists_kept
  std::optional<ReceiptHash> mask;       // MaskHashOf of the step's mask, if it had one
  uint32_t phase = 0;                    // phase of the draw; 0: outside of phases
  bool operator==(const Receipt&) const = default;
};

// The state of a chain, as a signature names it.
struct ReceiptHead {
  ReceiptChainId chain = {};
  uint64_t receipts = 0;
  ReceiptHash hash = {};
  bool has_ended = false;
  bool operator==(const ReceiptHead&) const = default;
};

// The body of a record that signs chains.
struct ReceiptSignature {
  ReceiptPublicKey public_key = {};
  uint64_t time = 0;  // milliseconds since 1970
  std::vector<ReceiptHead> heads;
  std::array<uint8_t, 64> signature = {};
  bool operator==(const ReceiptSignature&) const = default;
};

// Return the one encoding of a body.
std::string EncodeBody(const ReceiptOpening& opening);
std::string EncodeBody(const Receipt& receipt);
std::string EncodeBody(const ReceiptSignature& signature);

// Returns the bytes that are signed: all of the body but the signature, after a prefix.
std::string SignedBytes(const ReceiptSignature& signature);

// Appends a record of this body.
void AppendRecord(ReceiptRecord type, std::string_view body, std::string* to);
// Appends the record of a receipt. Returns its body, until `to` changes.
std::string_view AppendRecord(const Receipt& receipt, std::string* to);

// Return a body's fields; nothing if the bytes are not such a body.
std::optional<ReceiptOpening> DecodeOpening(std::string_view body);
// Returns the law version that an opening names; 0 if it is of another format.
uint32_t ReadLaw(std::string_view opening);
std::optional<Receipt> DecodeReceipt(std::string_view body);
std::optional<ReceiptSignature> DecodeSignature(std::string_view body);

// Returns SHA-256.
ReceiptHash HashBytes(std::string_view bytes);
// Returns the id of the chain that an opening of this hash begins.
ReceiptChainId ChainIdOf(const ReceiptHash& opening);

// Appends the record of an opening. Returns the state of the chain that it begins.
ReceiptHead BeginChain(const ReceiptOpening& opening, std::string* to);
// Sets the chain, index and previous hash of receipts, appends their records, and advances the chain.
void ContinueChain(std::vector<Receipt> receipts, ReceiptHead* head, std::string* to);

// Returns the hash of a packed mask's bits below `live_vocabulary`: the same for each form of the mask. `words` has at
// least ceil(live_vocabulary / 32) words, least significant bit first. Takes some 10 µs for 150,000 tokens.
ReceiptHash MaskHashOf(std::span<const uint32_t> words, uint32_t live_vocabulary);
// Does the same for a list of allowed tokens, each below `live_vocabulary`.
ReceiptHash MaskHashOfTokens(std::span<const uint32_t> allowed, uint32_t live_vocabulary);

// Returns the commitment to a seed.
ReceiptHash CommitmentOf(uint64_t seed, const ReceiptSalt& salt);

}  // namespace sortition::service
