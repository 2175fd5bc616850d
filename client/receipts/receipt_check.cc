// Reads records in order and compares them with the state of their chains.
#include "client/receipts/receipt_check.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/receipts/receipt_draw.h"
#include "kernels/law/version.h"
#include "service/limits.h"
#include "service/receipt/receipt_key.h"
#include "service/text/make_receipts.h"
#include "service/wire/compile_parameters.h"
#include "service/wire/receipt_words.h"

namespace sortition::client {
namespace {

using service::Receipt;
using service::ReceiptHead;
using service::ReceiptMethod;
using service::ReceiptOpening;
using service::ReceiptRecord;
using service::ReceiptSignature;

// Returns the compiled parameters; null if the words encode none.
std::shared_ptr<const service::SequenceSpec> CompileOpening(const ReceiptOpening& opening,
                                                            const std::optional<v1::SamplingParameters>& parameters) {
  const bool has_vocabulary = opening.live_vocabulary >= 1 && opening.live_vocabulary <= opening.vocabulary &&
                              opening.vocabulary <= kernels::kMaxVocabulary &&
                              opening.choice_index <= service::kMaxChoiceIndex;
  if (!parameters || !has_vocabulary) return nullptr;
  auto spec = std::make_shared<service::SequenceSpec>();
  spec->law_version = opening.law_version;
  spec->choice_index = opening.choice_index;
  spec->vocabulary = opening.vocabulary;
  spec->live_vocabulary = opening.live_vocabulary;
  // No server accepts more than the limits' largest values.
  service::Limits limits;
  limits.max_listed_tokens = service::kMostListedTokens;
  limits.max_history = 1u << 30;
  if (service::CompileParameters(*parameters, limits, "parameters", spec.get())) return nullptr;
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<SeedOpening>> ParseSeeds(std::string_view text) {
  std::vector<SeedOpening> seeds;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (stripped.empty() || stripped.front() == '#') continue;
    const std::vector<std::string> parts = absl::StrSplit(stripped, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    SeedOpening& seed = seeds.emplace_back();
    const bool is_hex = parts.size() == 2 && parts[1].size() == 2 * seed.salt.size() &&
                        std::ranges::all_of(parts[1], [](char c) { return absl::ascii_isxdigit(c); });
    if (!is_hex || !absl::SimpleAtoi(parts[0], &seed.seed)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " is no SEED SALT: a decimal number and 32 hexadecimal digits"));
    }
    const std::string salt = absl::HexStringToBytes(parts[1]);
    std::memcpy(seed.salt.data(), salt.data(), salt.size());
  }
  return seeds;
}

ReceiptCheck::ReceiptCheck(Options options) : options_(std::move(options)) {
  for (const SeedOpening& seed : options_.seeds) {
    seeds_.try_emplace(service::CommitmentOf(seed.seed, seed.salt), seed, false);
  }
}

void ReceiptCheck::Report(std::string name, std::string_view chain, std::optional<uint64_t> index, std::string detail) {
  ++findings_.problem_counts[name];
  if (findings_.problems.size() < kMostProblems) {
    findings_.problems.push_back({std::move(name), std::string(chain), index, std::move(detail)});
  }
}

void ReceiptCheck::Read(std::string_view bytes) {
  const auto length = reader_.Read(bytes, [this](uint8_t type, std::string_view body) { TakeRecord(type, body); });
  if (length) Report("bad_record", "", std::nullopt, absl::StrCat("a record of ", *length, " bytes"));
}

void ReceiptCheck::EndFile() {
  if (const size_t cut = reader_.End(); cut > 0) {
    Report("cut_record", "", std::nullopt, absl::StrCat("the last ", cut, " bytes are part of a record"));
  }
}

void ReceiptCheck::Finish() {
  EndFile();
  findings_.counts.chains = chains_.size();
  for (const auto& [id, chain] : chains_) {
    findings_.counts.ended += chain.has_ended;
    findings_.counts.before += chain.first.value_or(0);
  }
  for (const SeedOpening& seed : options_.seeds) {
    if (seeds_.at(service::CommitmentOf(seed.seed, seed.salt)).second) continue;
    Report("wrong_seed", "", std::nullopt, absl::StrCat(seed.seed, " ", Hex(seed.salt)));
  }
}

void ReceiptCheck::TakeRecord(uint8_t type, std::string_view body) {
  switch (static_cast<ReceiptRecord>(type)) {
    case ReceiptRecord::kOpening:
      return TakeOpening(body);
    case ReceiptRecord::kReceipt:
      return TakeReceipt(body);
    case ReceiptRecord::kSignature:
      return TakeSignature(body);
  }
  Report("bad_record", "", std::nullopt, absl::StrCat("a record of type ", type));
}

void ReceiptCheck::TakeOpening(std::string_view body) {
  const service::ReceiptHash hash = service::HashBytes(body);
  const std::string id = Hex(service::ChainIdOf(hash));
  if (chains_.contains(id)) return;
  CheckedChain chain;
  chain.hash = hash;
  const auto opening = service::DecodeOpening(body);
  if (opening) SetOptions(*opening, &chain);
  if (service::ReadLaw(body) != law::kLawVersion) {
    Report("unknown_law", id, std::nullopt, absl::StrCat("an opening of another law than ", law::kLawVersion));
  } else if (chain.spec == nullptr) {
    Report("bad_record", id, std::nullopt, "an opening with other fields, or whose parameters are none");
  } else if (!opening->integers.empty() && opening->integers != service::MakeIntegers(*chain.spec)) {
    Report("wrong_integers", id, std::nullopt, "the law makes other integers of its parameters");
    chain.spec = nullptr;
  }
  if (opening) {
    chain.request_id = opening->request_id;
    chain.has_watermark = opening->has_watermark;
    if (const auto seed = seeds_.find(opening->commitment); seed != seeds_.end()) {
      seed->second.second = true;
      chain.seed = seed->second.first.seed;
    }
  }
  chains_.emplace(id, std::move(chain));
}

void ReceiptCheck::SetOptions(const ReceiptOpening& opening, CheckedChain* chain) {
  if (opening.law_version != law::kLawVersion) return;
  std::vector<uint32_t> words = {opening.vocabulary, opening.live_vocabulary, opening.choice_index};
  words.insert(words.end(), opening.parameters.begin(), opening.parameters.end());
  const service::ReceiptHash hash =
      service::HashBytes({reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t)});
  auto [known, is_new] = options_of_chains_.try_emplace(hash);
  if (is_new) {
    const auto parameters = service::ParseReceiptWords(opening.parameters);
    known->second.first = CompileOpening(opening, parameters);
    if (parameters) known->second.second = std::make_shared<const v1::SamplingParameters>(*parameters);
  }
  std::tie(chain->spec, chain->parameters) = known->second;
}

void ReceiptCheck::TakeReceipt(std::string_view body) {
  ++findings_.counts.receipts;
  const auto receipt = service::DecodeReceipt(body);
  if (!receipt) return Report("bad_record", "", std::nullopt, "a receipt with other fields");
  const std::string id = Hex(receipt->chain);
  const auto found = chains_.find(id);
  if (found == chains_.end()) return Report("unknown_chain", id, receipt->index, "a receipt without an opening");
  CheckedChain& chain = found->second;
  const bool begins = !chain.first;
  if (begins) chain.first = receipt->index;
  const bool fits =
      (begins && receipt->index > 0) || (receipt->index == chain.receipts && receipt->previous == chain.hash);
  if (!fits) {
    chain.fits = false;
    // One of the receipts on both sides may be changed: no signature that follows vouches for those before.
    chain.unsigned_receipts = 0;
    Report("broken_chain", id, receipt->index,
           receipt->index == chain.receipts ? "it does not follow the receipt before it"
                                            : absl::StrCat("receipt ", chain.receipts, " was expected"));
  }
  chain.receipts = receipt->index + 1;
  chain.hash = service::HashBytes(body);
  if (chain.fits) ++chain.unsigned_receipts;
  CheckDraw(chain, id, *receipt);
  if (options_.on_receipt) options_.on_receipt(id, chain, *receipt);
}

void ReceiptCheck::CheckDraw(const CheckedChain& chain, const std::string& id, const Receipt& receipt) {
  if (chain.spec == nullptr) {
    ++findings_.counts.other_law;
    return;
  }
  if (!receipt.lists_kept) {
    ++findings_.counts.unlisted;
    return;
  }
  const std::optional<uint64_t> seed = chain.has_watermark ? std::nullopt : chain.seed;
  const RedrawnToken redrawn = Redraw(*chain.spec, seed, receipt);
  if (!redrawn.why_not.empty()) return Report("wrong_token", id, receipt.index, redrawn.why_not);
  if (!redrawn.is_kept) {
    return Report("wrong_token", id, receipt.index, absl::StrCat("token ", receipt.token, " is not kept"));
  }
  if (redrawn.token && *redrawn.token != receipt.token) {
    return Report("wrong_token", id, receipt.index,
                  absl::StrCat("position ", receipt.position, ": token ", receipt.token, " is stated, the kept tokens ",
                               "and the seed give ", *redrawn.token));
  }
  if (redrawn.logprob_bits && *redrawn.logprob_bits != receipt.logprob_bits) {
    return Report("wrong_logprob", id, receipt.index,
                  absl::StrCat("position ", receipt.position, ": the kept tokens give another logprob"));
  }
  if (redrawn.token) {
    ++findings_.counts.drawn;
  } else if (IsAdapted(*chain.spec)) {
    ++findings_.counts.adapted;
  } else if (receipt.method != ReceiptMethod::kRace) {
    ++findings_.counts.no_draft;
  } else if (chain.has_watermark) {
    ++findings_.counts.watermarked;
  } else {
    ++findings_.counts.no_seed;
  }
}

void ReceiptCheck::TakeSignature(std::string_view body) {
  const auto signature = service::DecodeSignature(body);
  if (!signature) return Report("bad_record", "", std::nullopt, "a signature with other fields");
  const std::string key = Hex(signature->public_key);
  bool counts = service::IsSigned(*signature);
  if (!counts) Report("wrong_signature", "", std::nullopt, absl::StrCat("of key ", key));
  if (!options_.keys.empty() && std::ranges::find(options_.keys, signature->public_key) == options_.keys.end()) {
    Report("unknown_key", "", std::nullopt, key);
    counts = false;
  }
  for (const ReceiptHead& head : signature->heads) {
    const std::string id = Hex(head.chain);
    const auto found = chains_.find(id);
    if (found == chains_.end()) {
      Report("unknown_chain", id, std::nullopt, "a signature of a chain without an opening");
      continue;
    }
    CheckedChain& chain = found->second;
    if (head.receipts != chain.receipts || head.hash != chain.hash) {
      Report("wrong_head", id, head.receipts, absl::StrCat("the file has ", chain.receipts, " receipts of the chain"));
      continue;
    }
    chain.has_ended |= head.has_ended;
    if (!counts) continue;
    findings_.counts.signed_receipts += chain.unsigned_receipts;
    findings_.signers[key] += chain.unsigned_receipts;
    chain.unsigned_receipts = 0;
  }
}

}  // namespace sortition::client
