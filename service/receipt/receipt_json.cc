// Writes each object's members in ascending order of their names, and no space.
#include "service/receipt/receipt_json.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace sortition::service {
namespace {

// Returns the length of the UTF-8 character that `text` begins with; 0 if it begins with none.
size_t CharacterLength(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto continues = [&](size_t i) { return (at(i) & 0xc0) == 0x80; };
  const uint32_t first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return continues(1) ? 2 : 0;
  // Refuses overlong forms, surrogates, and what lies beyond U+10FFFF.
  if (first == 0xe0 && at(1) < 0xa0) return 0;
  if (first == 0xed && at(1) >= 0xa0) return 0;
  if (first >= 0xe0 && first < 0xf0) return continues(1) && continues(2) ? 3 : 0;
  if (first == 0xf0 && at(1) < 0x90) return 0;
  if (first == 0xf4 && at(1) >= 0x90) return 0;
  if (first >= 0xf0 && first < 0xf5) return continues(1) && continues(2) && continues(3) ? 4 : 0;
  return 0;
}

// Returns the text in quotation marks; nothing if it is not UTF-8.
std::optional<std::string> Quoted(std::string_view text) {
  static constexpr std::pair<char, char> kShort[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                     {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length == 0) return std::nullopt;
    const char c = text[0];
    const auto* const escape =
        std::find_if(std::begin(kShort), std::end(kShort), [&](const auto& pair) { return pair.first == c; });
    if (escape != std::end(kShort)) {
      quoted += {'\\', escape->second};
    } else if (static_cast<uint8_t>(c) < 0x20) {
      absl::StrAppend(&quoted, "\\u", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad4));
    } else {
      quoted.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  return quoted + "\"";
}

template <size_t size>
std::string Hex(const std::array<uint8_t, size>& bytes) {
  return absl::StrCat("\"", absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), size}), "\"");
}

std::string Wide(uint64_t number) { return absl::StrCat("\"", number, "\""); }

std::string Truth(bool value) { return value ? "true" : "false"; }

std::string Numbers(absl::Span<const uint32_t> numbers) { return absl::StrCat("[", absl::StrJoin(numbers, ","), "]"); }

std::string List(const std::vector<std::string>& items) { return absl::StrCat("[", absl::StrJoin(items, ","), "]"); }

std::string ToJson(const ReceiptIntegers& integers) {
  std::vector<std::string> stages;
  for (const auto& stage : integers.stages) stages.push_back(Numbers(stage));
  return absl::StrCat("{\"greedy\":", Truth(integers.greedy), ",\"inverse_repetition\":", integers.inverse_repetition,
                      ",\"repetition\":", integers.repetition, ",\"stages\":", List(stages), "}");
}

absl::StatusOr<std::string> ToJson(const ReceiptOpening& opening) {
  const std::optional<std::string> request_id = Quoted(opening.request_id);
  if (!request_id) return absl::InvalidArgumentError("a request_id that is not UTF-8");
  std::string integers;
  if (!opening.integers.empty()) {
    std::vector<std::string> phases;
    for (const ReceiptIntegers& phase : opening.integers) phases.push_back(ToJson(phase));
    integers = absl::StrCat("\"integers\":", List(phases), ",");
  }
  return absl::StrCat("{\"choice_index\":", opening.choice_index, ",\"commitment\":", Hex(opening.commitment), ",",
                      integers, "\"law_version\":", opening.law_version,
                      ",\"live_vocabulary_size\":", opening.live_vocabulary, ",\"nonce\":", Hex(opening.nonce),
                      ",\"parameters\":", Numbers(opening.parameters), ",\"request_id\":", *request_id,
                      ",\"type\":\"opening\",\"vocabulary_size\":", opening.vocabulary,
                      ",\"watermark\":", Truth(opening.has_watermark), "}");
}

std::string ToJson(const Receipt& receipt) {
  std::string json = absl::StrCat("{\"chain\":", Hex(receipt.chain), ",\"draw_salt\":", receipt.draw_salt);
  if (receipt.history_hash) absl::StrAppend(&json, ",\"history_hash\":", Wide(*receipt.history_hash));
  absl::StrAppend(&json, ",\"index\":", Wide(receipt.index));
  if (receipt.lists_kept) {
    absl::StrAppend(&json, ",\"kept\":[");
    for (const kernels::TokenBits& kept : receipt.kept) {
      absl::StrAppend(&json, json.back() == '[' ? "[" : ",[", kept.token, ",", kept.bits, "]");
    }
    json += ']';
  }
  absl::StrAppend(&json, ",\"kept_count\":", receipt.kept_count, ",\"logprob\":", receipt.logprob_bits);
  if (receipt.mask) absl::StrAppend(&json, ",\"mask\":", Hex(*receipt.mask));
  absl::StrAppend(&json, ",\"method\":", static_cast<uint32_t>(receipt.method), ",\"offset\":", receipt.offset);
  if (receipt.phase != 0) absl::StrAppend(&json, ",\"phase\":", receipt.phase);
  absl::StrAppend(&json, ",\"position\":", receipt.position, ",\"previous\":", Hex(receipt.previous),
                  ",\"step_id\":", Wide(receipt.step_id), ",\"temperature\":", receipt.temperature);
  absl::StrAppend(&json, ",\"token\":", receipt.token, ",\"type\":\"receipt\"}");
  return json;
}

std::string ToJson(const ReceiptSignature& signature) {
  std::string json = "{\"heads\":[";
  for (const ReceiptHead& head : signature.heads) {
    absl::StrAppend(&json, json.back() == '[' ? "" : ",", "{\"chain\":", Hex(head.chain),
                    ",\"ended\":", Truth(head.has_ended), ",\"head\":", Hex(head.hash),
                    ",\"receipts\":", Wide(head.receipts), "}");
  }
  absl::StrAppend(&json, "],\"public_key\":", Hex(signature.public_key), ",\"signature\":", Hex(signature.signature));
  absl::StrAppend(&json, ",\"time\":", Wide(signature.time), ",\"type\":\"signature\"}");
  return json;
}

}  // namespace

absl::StatusOr<std::string> ToJson(ReceiptRecord type, std::string_view body) {
  switch (type) {
    case ReceiptRecord::kOpening:
      if (const auto opening = DecodeOpening(body)) return ToJson(*opening);
      return absl::InvalidArgumentError("an opening with other fields");
    case ReceiptRecord::kReceipt:
      if (const auto receipt = DecodeReceipt(body)) return ToJson(*receipt);
      return absl::InvalidArgumentError("a receipt with other fields");
    case ReceiptRecord::kSignature:
      if (const auto signature = DecodeSignature(body)) return ToJson(*signature);
      return absl::InvalidArgumentError("a signature with other fields");
  }
  return absl::InvalidArgumentError(absl::StrCat("a record of type ", static_cast<uint32_t>(type)));
}

}  // namespace sortition::service
