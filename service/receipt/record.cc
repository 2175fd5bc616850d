// Encoding and decoding of receipts, byte by byte as docs/receipts.md lists them.
#include "service/receipt/record.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "kernels/check.h"

namespace sortition::service {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::string_view kMagic = "sortrcp1";
constexpr std::string_view kSignedPrefix = "sortition receipts 1";
constexpr std::string_view kSeedPrefix = "sortition seed 1";
constexpr std::string_view kMaskPrefix = "sortition mask 1";
constexpr uint32_t kWatermarkFlag = 1;
constexpr uint32_t kIntegersFlag = 2;
constexpr uint32_t kHistoryFlag = 1;
constexpr uint32_t kListedFlag = 2;
constexpr uint32_t kMaskFlag = 4;
constexpr uint32_t kPhaseFlag = 8;
constexpr uint32_t kEndedFlag = 1;
constexpr size_t kReceiptBytes = 108;  // a receipt's body without kept tokens, mask and phase

template <typename Number>
void Add(Number number, std::string* to) {
  static_assert(std::is_unsigned_v<Number>);
  to->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

template <size_t size>
void Add(const std::array<uint8_t, size>& bytes, std::string* to) {
  to->append(reinterpret_cast<const char*>(bytes.data()), size);
}

// Takes fields off the front of a body. After a field that is not there, `failed` is true and all further ones are 0.
class Reader {
 public:
  explicit Reader(std::string_view body) : left_(body) {}

  std::string_view Bytes(uint64_t size) {
    if (size > left_.size()) {
      failed_ = true;
      left_ = {};
      return {};
    }
    const std::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return bytes;
  }

  template <typename Number>
  Number Take() {
    Number number = 0;
    const std::string_view bytes = Bytes(sizeof(number));
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }

  template <size_t size>
  void Take(std::array<uint8_t, size>* to) {
    const std::string_view bytes = Bytes(size);
    if (!bytes.empty()) std::memcpy(to->data(), bytes.data(), size);
  }

  bool ends() const { return !failed_ && left_.empty(); }
  uint64_t left() const { return left_.size(); }

 private:
  std::string_view left_;
  bool failed_ = false;
};

// Takes the integers of all phases. Returns false if they are none.
bool TakeIntegers(Reader* reader, std::vector<ReceiptIntegers>* integers) {
  constexpr uint64_t kPhaseBytes = 16, kStageBytes = 20;
  const auto phases = reader->Take<uint32_t>();
  if (phases == 0 || phases * kPhaseBytes > reader->left()) return false;
  integers->resize(phases);
  for (ReceiptIntegers& phase : *integers) {
    const auto greedy = reader->Take<uint32_t>();
    phase.greedy = greedy != 0;
    phase.repetition = reader->Take<uint32_t>();
    phase.inverse_repetition = reader->Take<uint32_t>();
    const auto stages = reader->Take<uint32_t>();
    if (greedy > 1 || stages * kStageBytes > reader->left()) return false;
    phase.stages.resize(stages);
    for (auto& stage : phase.stages) {
      for (uint32_t& word : stage) word = reader->Take<uint32_t>();
    }
  }
  return true;
}

const EVP_MD* Sha256() {
  static const EVP_MD* const digest = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return digest;
}

std::string WithoutSignature(const ReceiptSignature& signature) {
  std::string body;
  Add(signature.public_key, &body);
  Add(signature.time, &body);
  Add(static_cast<uint32_t>(signature.heads.size()), &body);
  for (const ReceiptHead& head : signature.heads) {
    Add(head.chain, &body);
    Add(head.receipts, &body);
    Add(head.hash, &body);
    Add(head.has_ended ? kEndedFlag : 0u, &body);
  }
  return body;
}

}  // namespace

std::string EncodeBody(const ReceiptOpening& opening) {
  std::string body(kMagic);
  Add(opening.law_version, &body);
  Add(opening.vocabulary, &body);
  Add(opening.live_vocabulary, &body);
  Add(opening.choice_index, &body);
  Add((opening.has_watermark ? kWatermarkFlag : 0u) | (opening.integers.empty() ? 0u : kIntegersFlag), &body);
  Add(opening.nonce, &body);
  Add(opening.commitment, &body);
  Add(static_cast<uint32_t>(opening.request_id.size()), &body);
  body += opening.request_id;
  Add(static_cast<uint32_t>(opening.parameters.size()), &body);
  body.append(reinterpret_cast<const char*>(opening.parameters.data()), opening.parameters.size() * sizeof(uint32_t));
  if (opening.integers.empty()) return body;
  Add(static_cast<uint32_t>(opening.integers.size()), &body);
  for (const ReceiptIntegers& phase : opening.integers) {
    Add(phase.greedy ? 1u : 0u, &body);
    Add(phase.repetition, &body);
    Add(phase.inverse_repetition, &body);
    Add(static_cast<uint32_t>(phase.stages.size()), &body);
    for (const auto& stage : phase.stages) {
      for (const uint32_t word : stage) Add(word, &body);
    }
  }
  return body;
}

std::string EncodeBody(const Receipt& receipt) {
  std::string record;
  AppendRecord(receipt, &record);
  return record.substr(kRecordHeaderBytes);
}

// Receipts are made on the way of a token, so their fields are copied to where they stay.
std::string_view AppendRecord(const Receipt& receipt, std::string* to) {
  static_assert(sizeof(kernels::TokenBits) == 8 && offsetof(kernels::TokenBits, bits) == 4);
  const size_t begin = to->size();
  const size_t kept_bytes = receipt.kept.size() * sizeof(kernels::TokenBits);
  const size_t mask_bytes = receipt.mask ? receipt.mask->size() : 0;
  const size_t phase_bytes = receipt.phase != 0 ? sizeof(receipt.phase) : 0;
  const auto body_bytes = static_cast<uint32_t>(kReceiptBytes + kept_bytes + mask_bytes + phase_bytes);
  to->resize(begin + kRecordHeaderBytes + body_bytes);
  char* at = to->data() + begin;
  const auto put = [&at](const void* bytes, size_t size) {
    at = std::copy_n(static_cast<const char*>(bytes), size, at);
  };
  const auto type = static_cast<uint8_t>(ReceiptRecord::kReceipt);
  put(&type, 1);
  put(&body_bytes, sizeof(body_bytes));
  put(receipt.chain.data(), receipt.chain.size());
  put(receipt.previous.data(), receipt.previous.size());
  const uint64_t longs[] = {receipt.index, receipt.step_id, receipt.history_hash.value_or(0)};
  put(longs, sizeof(longs));
  const uint32_t flags = (receipt.history_hash ? kHistoryFlag : 0u) | (receipt.lists_kept ? kListedFlag : 0u) |
                         (receipt.mask ? kMaskFlag : 0u) | (receipt.phase != 0 ? kPhaseFlag : 0u);
  const uint32_t words[] = {
      receipt.position,  receipt.offset,      flags,         static_cast<uint32_t>(receipt.method),
      receipt.draw_salt, receipt.temperature, receipt.token, receipt.logprob_bits,
      receipt.kept_count};
  put(words, sizeof(words));
  put(receipt.kept.data(), kept_bytes);
  if (receipt.mask) put(receipt.mask->data(), mask_bytes);
  put(&receipt.phase, phase_bytes);
  return std::string_view(*to).substr(begin + kRecordHeaderBytes);
}

std::string EncodeBody(const ReceiptSignature& signature) {
  std::string body = WithoutSignature(signature);
  Add(signature.signature, &body);
  return body;
}

std::string SignedBytes(const ReceiptSignature& signature) {
  return std::string(kSignedPrefix) + WithoutSignature(signature);
}

void AppendRecord(ReceiptRecord type, std::string_view body, std::string* to) {
  SORTITION_CHECK(body.size() <= kMaxRecordBytes);
  to->push_back(static_cast<char>(type));
  Add(static_cast<uint32_t>(body.size()), to);
  to->append(body);
}

std::optional<ReceiptOpening> DecodeOpening(std::string_view body) {
  Reader reader(body);
  ReceiptOpening opening;
  if (reader.Bytes(kMagic.size()) != kMagic) return std::nullopt;
  opening.law_version = reader.Take<uint32_t>();
  opening.vocabulary = reader.Take<uint32_t>();
  opening.live_vocabulary = reader.Take<uint32_t>();
  opening.choice_index = reader.Take<uint32_t>();
  const auto flags = reader.Take<uint32_t>();
  opening.has_watermark = (flags & kWatermarkFlag) != 0;
  reader.Take(&opening.nonce);
  reader.Take(&opening.commitment);
  opening.request_id = reader.Bytes(reader.Take<uint32_t>());
  const auto words = reader.Take<uint32_t>();
  if (uint64_t{words} * sizeof(uint32_t) > reader.left()) return std::nullopt;
  if (flags > (kWatermarkFlag | kIntegersFlag)) return std::nullopt;
  opening.parameters.reserve(words);
  for (uint32_t i = 0; i < words; ++i) opening.parameters.push_back(reader.Take<uint32_t>());
  if ((flags & kIntegersFlag) != 0 && !TakeIntegers(&reader, &opening.integers)) return std::nullopt;
  if (!reader.ends()) return std::nullopt;
  return opening;
}

uint32_t ReadLaw(std::string_view opening) {
  Reader reader(opening);
  return reader.Bytes(kMagic.size()) == kMagic ? reader.Take<uint32_t>() : 0;
}

std::optional<Receipt> DecodeReceipt(std::string_view body) {
  Reader reader(body);
  Receipt receipt;
  reader.Take(&receipt.chain);
  reader.Take(&receipt.previous);
  receipt.index = reader.Take<uint64_t>();
  receipt.step_id = reader.Take<uint64_t>();
  const auto hash = reader.Take<uint64_t>();
  receipt.position = reader.Take<uint32_t>();
  receipt.offset = reader.Take<uint32_t>();
  const auto flags = reader.Take<uint32_t>();
  const auto method = reader.Take<uint32_t>();
  receipt.draw_salt = reader.Take<uint32_t>();
  receipt.temperature = reader.Take<uint32_t>();
  receipt.token = reader.Take<uint32_t>();
  receipt.logprob_bits = reader.Take<uint32_t>();
  receipt.kept_count = reader.Take<uint32_t>();
  receipt.lists_kept = (flags & kListedFlag) != 0;
  if ((flags & kHistoryFlag) != 0) receipt.history_hash = hash;
  const uint64_t listed = receipt.lists_kept ? receipt.kept_count : 0;
  const uint64_t mask_bytes = (flags & kMaskFlag) != 0 ? sizeof(ReceiptHash) : 0;
  const uint64_t phase_bytes = (flags & kPhaseFlag) != 0 ? sizeof(receipt.phase) : 0;
  const bool is_method = method >= static_cast<uint32_t>(ReceiptMethod::kRace) &&
                         method <= static_cast<uint32_t>(ReceiptMethod::kInPlaceOfDraft);
  if (listed * sizeof(kernels::TokenBits) + mask_bytes + phase_bytes != reader.left() || listed > kMaxReceiptTokens) {
    return std::nullopt;
  }
  if (!is_method || flags > (kHistoryFlag | kListedFlag | kMaskFlag | kPhaseFlag) || receipt.kept_count == 0)
    return std::nullopt;
  if (!receipt.history_hash && hash != 0) return std::nullopt;
  if (receipt.offset > receipt.position) return std::nullopt;
  receipt.method = static_cast<ReceiptMethod>(method);
  receipt.kept.resize(listed);
  for (kernels::TokenBits& token : receipt.kept) {
    token.token = reader.Take<uint32_t>();
    token.bits = reader.Take<uint32_t>();
  }
  if (mask_bytes != 0) reader.Take(&receipt.mask.emplace());
  if (phase_bytes != 0) {
    receipt.phase = reader.Take<uint32_t>();
    if (receipt.phase == 0) return std::nullopt;
  }
  const auto falls = [](const kernels::TokenBits& a, const kernels::TokenBits& b) { return a.token >= b.token; };
  if (std::ranges::adjacent_find(receipt.kept, falls) != receipt.kept.end() || !reader.ends()) return std::nullopt;
  return receipt;
}

std::optional<ReceiptSignature> DecodeSignature(std::string_view body) {
  constexpr uint64_t kHeadBytes = 16 + 8 + 32 + 4;
  Reader reader(body);
  ReceiptSignature signature;
  reader.Take(&signature.public_key);
  signature.time = reader.Take<uint64_t>();
  const auto heads = reader.Take<uint32_t>();
  if (heads == 0 || heads * kHeadBytes + signature.signature.size() != reader.left()) return std::nullopt;
  for (uint32_t i = 0; i < heads; ++i) {
    ReceiptHead& head = signature.heads.emplace_back();
    reader.Take(&head.chain);
    head.receipts = reader.Take<uint64_t>();
    reader.Take(&head.hash);
    const auto flags = reader.Take<uint32_t>();
    if (flags > kEndedFlag) return std::nullopt;
    head.has_ended = flags == kEndedFlag;
  }
  reader.Take(&signature.signature);
  if (!reader.ends()) return std::nullopt;
  return signature;
}

ReceiptHash HashBytes(std::string_view bytes) {
  // A context that is kept saves more than half of the time of a short hash.
  struct Context {
    EVP_MD_CTX* const context = EVP_MD_CTX_new();
    ~Context() { EVP_MD_CTX_free(context); }
  };
  static thread_local const Context kept;
  ReceiptHash hash = {};
  SORTITION_CHECK(EVP_DigestInit_ex2(kept.context, Sha256(), nullptr) == 1);
  SORTITION_CHECK(EVP_DigestUpdate(kept.context, bytes.data(), bytes.size()) == 1);
  SORTITION_CHECK(EVP_DigestFinal_ex(kept.context, hash.data(), nullptr) == 1);
  return hash;
}

ReceiptChainId ChainIdOf(const ReceiptHash& opening) {
  ReceiptChainId id = {};
  std::ranges::copy_n(opening.begin(), id.size(), id.begin());
  return id;
}

ReceiptHead BeginChain(const ReceiptOpening& opening, std::string* to) {
  const std::string body = EncodeBody(opening);
  AppendRecord(ReceiptRecord::kOpening, body, to);
  ReceiptHead head;
  head.hash = HashBytes(body);
  head.chain = ChainIdOf(head.hash);
  return head;
}

void ContinueChain(std::vector<Receipt> receipts, ReceiptHead* head, std::string* to) {
  for (Receipt& receipt : receipts) {
    receipt.chain = head->chain;
    receipt.index = head->receipts++;
    receipt.previous = head->hash;
    head->hash = HashBytes(AppendRecord(receipt, to));
  }
}

ReceiptHash MaskHashOf(std::span<const uint32_t> words, uint32_t live_vocabulary) {
  const size_t whole = live_vocabulary / 32, rest = live_vocabulary % 32;
  SORTITION_CHECK(words.size() >= whole + (rest != 0 ? 1 : 0));
  std::string bytes(kMaskPrefix);
  bytes.append(reinterpret_cast<const char*>(words.data()), whole * sizeof(uint32_t));
  if (rest != 0) Add(words[whole] & ((1u << rest) - 1), &bytes);
  return HashBytes(bytes);
}

ReceiptHash MaskHashOfTokens(std::span<const uint32_t> allowed, uint32_t live_vocabulary) {
  std::vector<uint32_t> words((live_vocabulary + 31) / 32);
  for (const uint32_t token : allowed) words[token / 32] |= 1u << token % 32;
  return MaskHashOf(words, live_vocabulary);
}

ReceiptHash CommitmentOf(uint64_t seed, const ReceiptSalt& salt) {
  std::string bytes(kSeedPrefix);
  Add(salt, &bytes);
  Add(seed, &bytes);
  return HashBytes(bytes);
}

}  // namespace sortition::service
