// A chain of receipts as a server writes it, of rows with random logits.
#pragma once

#include <bit>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/receipts/receipt_check.h"
#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "kernels/law/version.h"
#include "service/limits.h"
#include "service/receipt/receipt_key.h"
#include "service/text/make_receipts.h"
#include "service/wire/compile_parameters.h"
#include "service/wire/receipt_words.h"

namespace sortition::testing::vectors {

using client::SeedOpening;
using service::Receipt;
using service::ReceiptMethod;
using service::ReceiptRecord;

inline constexpr uint32_t kVocabulary = 40;
inline constexpr uint64_t kTime = 1'800'000'000'000;

inline std::shared_ptr<const service::ReceiptKey> Key(uint8_t byte) {
  std::array<uint8_t, 32> bytes;
  bytes.fill(byte);
  return service::ReceiptKey::OfBytes(bytes);
}

class Chain {
 public:
  Chain(std::string name, uint64_t seed, v1::SamplingParameters parameters, uint32_t law_version = law::kLawVersion)
      : parameters_(std::move(parameters)), random_(seed) {
    seed_.seed = seed;
    seed_.salt.fill(static_cast<uint8_t>(seed));
    opening_.law_version = law_version;
    opening_.vocabulary = kVocabulary + 8;
    opening_.live_vocabulary = kVocabulary;
    opening_.choice_index = 3;
    opening_.nonce.fill(static_cast<uint8_t>(name.size()));
    opening_.commitment = service::CommitmentOf(seed, seed_.salt);
    opening_.request_id = std::move(name);
    opening_.parameters = service::ReceiptWords(parameters_);
    opening_.has_watermark = parameters_.has_watermark();
    spec_.vocabulary = opening_.vocabulary;
    spec_.live_vocabulary = kVocabulary;
    spec_.choice_index = opening_.choice_index;
    SORTITION_CHECK(!service::CompileParameters(parameters_, service::Limits(), "parameters", &spec_));
    spec_.parameters.processed_logprob = spec_.parameters.kept_tokens = true;
    ChangeOpening([this](service::ReceiptOpening* opening) { opening->integers = service::MakeIntegers(spec_); });
  }

  // Call before the first draw.
  void ChangeOpening(const std::function<void(service::ReceiptOpening*)>& change) {
    change(&opening_);
    head_.hash = service::HashBytes(EncodeBody(opening_));
    head_.chain = service::ChainIdOf(head_.hash);
  }

  std::string Opening() const { return Record(ReceiptRecord::kOpening, EncodeBody(opening_)); }

  // Draws a token and returns its receipt, after `change` has changed its fields. `mask` is the step's, packed; empty:
  // it has none.
  using Change = std::function<void(Receipt*)>;
  std::string Draw(const Change& change = nullptr, const std::vector<uint32_t>& mask = {}) {
    std::vector<float>& logits = rows_.emplace_back(kVocabulary);
    for (float& x : logits) x = float(int64_t(random_() % 8192) - 4096) / 1024;
    const uint32_t position = 7 + static_cast<uint32_t>(head_.receipts);
    kernels::RowRequest request;
    request.logits = logits.data();
    request.live_vocabulary = kVocabulary;
    request.parameters = &spec_.parameters;
    request.noise = {seed_.seed, position, opening_.choice_index | 2u << 16};
    if (!mask.empty()) request.allowed_bits = mask.data();
    request.sampler_state = kernels::InitialSamplerState(spec_.parameters.chain);
    const kernels::RowOutput output = law::SampleRowReference(request);
    Receipt receipt;
    receipt.chain = head_.chain;
    receipt.previous = head_.hash;
    receipt.index = head_.receipts;
    receipt.step_id = head_.receipts + 1;
    receipt.position = position;
    if (spec_.stateful()) receipt.history_hash = random_();
    receipt.lists_kept = true;
    receipt.method = spec_.parameters.greedy ? ReceiptMethod::kGreedy : ReceiptMethod::kRace;
    receipt.draw_salt = 2;
    receipt.temperature = output.temperature;
    receipt.token = output.token;
    receipt.logprob_bits = std::bit_cast<uint32_t>(law::Logprob(output.processed, output.processed.chosen.bits,
                                                                law::ProcessedTemperature(spec_.parameters, output)));
    receipt.kept_count = output.kept;
    receipt.kept = output.kept_tokens;
    if (!mask.empty()) receipt.mask = service::MaskHashOf(mask, kVocabulary);
    if (change) change(&receipt);
    const std::string body = EncodeBody(receipt);
    ++head_.receipts;
    head_.hash = service::HashBytes(body);
    return Record(ReceiptRecord::kReceipt, body);
  }
  std::string Draws(int count) {
    std::string records;
    for (int i = 0; i < count; ++i) records += Draw();
    return records;
  }

  service::ReceiptHead Head(bool has_ended) const {
    service::ReceiptHead head = head_;
    head.has_ended = has_ended;
    return head;
  }
  std::string id() const { return client::Hex(head_.chain); }
  const SeedOpening& seed() const { return seed_; }
  // Returns the logits of each receipt.
  const std::vector<std::vector<float>>& rows() const { return rows_; }

  static std::string Record(ReceiptRecord type, const std::string& body) {
    std::string record;
    AppendRecord(type, body, &record);
    return record;
  }

 private:
  const v1::SamplingParameters parameters_;
  std::mt19937_64 random_;
  SeedOpening seed_;
  service::ReceiptOpening opening_;
  service::SequenceSpec spec_;
  service::ReceiptHead head_;
  std::vector<std::vector<float>> rows_;
};

inline std::string Sign(std::vector<service::ReceiptHead> heads, uint8_t key = 1, bool damages = false) {
  service::ReceiptSignature signature;
  signature.time = kTime;
  signature.heads = std::move(heads);
  Key(key)->Sign(&signature);
  if (damages) signature.signature[5] ^= 1;
  return Chain::Record(ReceiptRecord::kSignature, EncodeBody(signature));
}

}  // namespace sortition::testing::vectors
