// A receipt in columns lacks its chain, its index and the hash of the one before it: all three follow from the opening
// and the receipts before it.
#include "client/archive/receipt_columns.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/receipt/record.h"

namespace sortition::archive {
namespace {

using service::Receipt;

constexpr std::string_view kMagic = "sortcol1";
constexpr char kInColumns = 0, kWhole = 1;
// The body of a receipt has these before its kept tokens (docs/receipts.md): chain, previous and index, which are not
// stored, two numbers of 64 bits, and nine of 32.
constexpr size_t kSkipped = 16 + 32 + 8, kLongs = 2, kWords = 9;

void Add(uint32_t word, std::string* to) { to->append(reinterpret_cast<const char*>(&word), sizeof(word)); }

// Appends the first bytes of all numbers, then the second ones, and so on: bytes of one place resemble each other.
template <typename Number>
void AddPlanes(const std::vector<Number>& column, std::string* to) {
  for (size_t place = 0; place < sizeof(Number); ++place) {
    for (const Number number : column) to->push_back(static_cast<char>(number >> 8 * place));
  }
}

template <typename Number>
Number ReadAt(std::string_view body, size_t at) {
  Number number;
  std::memcpy(&number, body.data() + at, sizeof(number));
  return number;
}

class Columns {
 public:
  // Takes a receipt's body.
  void Add(std::string_view body, const Receipt& receipt) {
    size_t at = kSkipped;
    for (auto& column : longs_) {
      column.push_back(ReadAt<uint64_t>(body, at));
      at += sizeof(uint64_t);
    }
    for (size_t i = 0; i < kWords; ++i, at += sizeof(uint32_t)) words_[i].push_back(ReadAt<uint32_t>(body, at));
    words_[kWords].push_back(receipt.phase);
    if (receipt.mask) masks_.append(receipt.mask->begin(), receipt.mask->end());
    for (const kernels::TokenBits& kept : receipt.kept) {
      ids_.push_back(kept.token);
      bits_.push_back(kept.bits);
    }
  }

  uint32_t receipts() const { return static_cast<uint32_t>(words_[0].size()); }

  void AppendTo(std::string* file) const {
    for (const auto& column : longs_) AddPlanes(column, file);
    for (const auto& column : words_) AddPlanes(column, file);
    *file += masks_;
    AddPlanes(ids_, file);
    AddPlanes(bits_, file);
  }

 private:
  std::vector<uint64_t> longs_[kLongs];
  std::vector<uint32_t> words_[kWords + 1];  // the last ones are phases
  std::string masks_;
  std::vector<uint32_t> ids_, bits_;
};

}  // namespace

absl::StatusOr<std::string> PackReceipts(std::string_view records) {
  static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");
  Columns columns;
  std::string forms, whole;
  service::ReceiptHead head;  // of the last opening's chain
  const size_t bytes = records.size();
  while (!records.empty()) {
    const size_t header = service::kRecordHeaderBytes;
    if (records.size() < header || records.size() - header < ReadAt<uint32_t>(records, 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("receipts end within the record at byte ", bytes - records.size()));
    }
    const std::string_view record = records.substr(0, header + ReadAt<uint32_t>(records, 1));
    records.remove_prefix(record.size());
    const std::string_view body = record.substr(header);
    const auto type = static_cast<service::ReceiptRecord>(record[0]);
    const auto receipt = type == service::ReceiptRecord::kReceipt ? service::DecodeReceipt(body) : std::nullopt;
    if (receipt && receipt->chain == head.chain && receipt->previous == head.hash && receipt->index == head.receipts) {
      forms.push_back(kInColumns);
      columns.Add(body, *receipt);
      ++head.receipts;
      head.hash = service::HashBytes(body);
      continue;
    }
    forms.push_back(kWhole);
    whole += record;
    if (type == service::ReceiptRecord::kOpening) {
      const service::ReceiptHash hash = service::HashBytes(body);
      head = {service::ChainIdOf(hash), 0, hash, false};
    }
  }
  std::string file(kMagic);
  Add(static_cast<uint32_t>(forms.size()), &file);
  Add(columns.receipts(), &file);
  file += forms;
  columns.AppendTo(&file);
  return file + whole;
}

}  // namespace sortition::archive
