// Validates OpenSequence.
#include "service/wire/open_request.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "service/checks.h"
#include "service/wire/compile_parameters.h"

namespace sortition::service {
namespace {

std::optional<Refusal> ParseHistory(const v1::History& message, const SequenceSpec& spec, const Limits& limits,
                                    const std::string& path, HistoryPiece* piece) {
  piece->tokens.assign(message.tokens().begin(), message.tokens().end());
  const uint64_t end = uint64_t{message.offset()} + piece->tokens.size();
  const bool is_whole = !message.continues() && message.offset() == 0;
  if (auto refusal =
          CheckHistory({piece->tokens, message.offset(), message.prompt_length(), is_whole}, spec, limits, path)) {
    return refusal;
  }
  piece->prompt_length = message.prompt_length();
  piece->offset = message.offset();
  piece->continues = message.continues();
  if (!message.continues()) piece->known_length = static_cast<uint32_t>(end);
  return std::nullopt;
}

// Returns the word that stands for an operator's key in the history's digest, which clients learn.
uint64_t WatermarkIdOf(const std::string& id) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(id.data()), id.size(), digest.data());
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | digest[static_cast<size_t>(i)];
  return std::max<uint64_t>(word, 1);
}

}  // namespace

ReceiptSalt DrawSalt(Entropy* entropy) {
  const std::array<uint64_t, 2> words = {entropy->Draw(), entropy->Draw()};
  return std::bit_cast<ReceiptSalt>(words);
}

std::optional<Refusal> CheckNumbers(const SequenceSpec& spec, const Limits& limits, const std::string& whole,
                                    const std::string& own) {
  if (spec.law_version != law::kLawVersion) {
    return Refusal{Reason::kUnsupportedLawVersion, whole + "law_version", absl::StrCat(law::kLawVersion),
                   absl::StrCat("law version ", spec.law_version, " is not spoken by this server")};
  }
  if (auto refusal = CheckRange(spec.vocabulary, 1, Bounds(limits).max_vocabulary(), whole + "vocabulary_size")) {
    return refusal;
  }
  if (auto refusal = CheckRange<uint32_t>(spec.live_vocabulary, 1, spec.vocabulary, whole + "live_vocabulary_size")) {
    return refusal;
  }
  return CheckRange(spec.choice_index, 0, Bounds::max_choice_index(), own + "choice_index");
}

std::optional<Refusal> CheckHistory(const HistoryAsk& ask, const SequenceSpec& spec, const Limits& limits,
                                    const std::string& path) {
  const uint64_t end = uint64_t{ask.offset} + ask.tokens.size();
  const std::string field = path + ".tokens";
  const Bound most = Bounds(limits).max_history();
  if (auto refusal = CheckCount(end, most, field)) return refusal;
  if (auto refusal = CheckCount(ask.prompt_length, most, path + ".prompt_length")) return refusal;
  for (size_t i = 0; i < ask.tokens.size(); ++i) {
    if (auto refusal = CheckToken(ask.tokens[i], spec.live_vocabulary, field, static_cast<int>(i))) return refusal;
  }
  if (ask.is_whole && ask.prompt_length > end) {
    return Refusal{Reason::kOutOfRange, path + ".prompt_length", absl::StrCat("<= ", end),
                   "the prompt is longer than the history"};
  }
  return std::nullopt;
}

std::variant<std::shared_ptr<SequenceSpec>, Refusal> CompileSpec(const OpenAsk& ask,
                                                                 const v1::SamplingParameters& parameters,
                                                                 const Limits& limits, absl::string_view path) {
  const std::string prefix = absl::StrCat(path, ".");
  if (auto refusal = CheckName(ask.request_id, prefix + "request_id")) return *refusal;
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = ask.law_version;
  spec->vocabulary = ask.vocabulary;
  spec->live_vocabulary = ask.live_vocabulary.value_or(ask.vocabulary);
  spec->choice_index = ask.choice_index;
  if (auto refusal = CheckNumbers(*spec, limits, prefix, prefix)) return *refusal;
  if (auto refusal = CheckByteCount(ask.model.size(), Bounds::max_name_bytes(), prefix + "model")) return *refusal;
  if (auto refusal = CompileParameters(parameters, limits, prefix + "parameters", spec.get())) return *refusal;
  return spec;
}

std::variant<OpenRequest, Refusal> ParseOpen(const v1::OpenSequence& message, const Limits& limits,
                                             absl::string_view path, Entropy* entropy) {
  const auto field = [&](absl::string_view name) { return absl::StrCat(path, ".", name); };
  OpenAsk ask{message.request_id(),      message.model(), message.law_version(),
              message.vocabulary_size(), std::nullopt,    message.choice_index()};
  if (message.has_live_vocabulary_size()) ask.live_vocabulary = message.live_vocabulary_size();
  auto compiled = CompileSpec(ask, message.parameters(), limits, path);
  if (auto* refusal = std::get_if<Refusal>(&compiled)) return std::move(*refusal);
  auto spec = std::get<std::shared_ptr<SequenceSpec>>(std::move(compiled));
  OpenRequest request;
  request.request_id = message.request_id();
  request.epoch = message.epoch();
  request.model = message.model();
  if (!message.watermark_key_id().empty()) spec->history.watermark_id = WatermarkIdOf(message.watermark_key_id());

  if (message.has_history()) {
    if (!spec->stateful()) {
      return Refusal{Reason::kContradiction, field("history"), "",
                     "no option of the sequence looks at the history, so that the server would drop it"};
    }
    request.history.emplace();
    if (auto refusal = ParseHistory(message.history(), *spec, limits, field("history"), &*request.history))
      return *refusal;
  }
  spec->seed = message.has_seed() ? message.seed() : entropy->Draw();
  if (message.has_receipts()) {
    const std::string& salt = message.receipts().salt();
    request.receipt_salt = DrawSalt(entropy);
    if (!salt.empty() && salt.size() != request.receipt_salt->size()) {
      return Refusal{Reason::kOutOfRange, field("receipts.salt"), "0 or 16 bytes",
                     absl::StrCat("has ", salt.size(), " bytes")};
    }
    std::ranges::copy(salt, request.receipt_salt->begin());
    spec->receipts = request.asks_receipts = true;
  }
  request.spec = std::move(spec);
  return request;
}

}  // namespace sortition::service
