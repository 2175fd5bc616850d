// Logs of receipts.
#include <algorithm>
#include <string>

#include "client/c/objects.h"

namespace sortition::c {
namespace {

constexpr size_t kSaltBytes = 16;

absl::StatusOr<std::shared_ptr<Receipts>> Find(const sortition_receipts* receipts) {
  return AllReceipts::All().Find(receipts, "receipts");
}

}  // namespace

size_t Receipts::Take(std::span<uint8_t> to) {
  absl::MutexLock lock(&mutex_);
  waiting_ += log_->Take();
  const size_t size = waiting_.size();
  if (size > to.size()) return size;
  std::copy_n(waiting_.data(), size, to.data());
  waiting_.clear();
  return size;
}

absl::StatusOr<std::shared_ptr<client::ReceiptLog>> ReadReceipts(const sortition_receipts* given) {
  if (given == nullptr) return nullptr;
  const auto found = AllReceipts::All().Find(given, "options.receipts");
  if (!found.ok()) return found.status();
  if (!(*found)->log()->SeedLine().empty()) {
    return Refuse(v1::CONTRADICTION, "options.receipts", "the log of one sequence", "another sequence has this log");
  }
  return (*found)->log();
}

}  // namespace sortition::c

extern "C" {

using sortition::c::AllReceipts;
using sortition::c::Call;

sortition_code sortition_receipts_new(const uint8_t* salt, sortition_receipts** receipts, sortition_error** error) {
  return sortition::c::Make(receipts, "receipts", error, [&]() -> absl::StatusOr<sortition_receipts*> {
    std::string bytes;
    if (salt != nullptr) bytes.assign(reinterpret_cast<const char*>(salt), sortition::c::kSaltBytes);
    return AllReceipts::All().Add(std::make_shared<sortition::c::Receipts>(std::move(bytes)));
  });
}

sortition_code sortition_receipts_take(sortition_receipts* receipts, uint8_t* records, size_t capacity, size_t* size,
                                       sortition_error** error) {
  return Call(error, [&]() -> absl::Status {
    const auto found = sortition::c::Find(receipts);
    if (!found.ok()) return found.status();
    if (size == nullptr) return sortition::c::Missing("size");
    if (const auto room = sortition::c::Span(records, capacity, "records"); !room.ok()) return room.status();
    *size = (*found)->Take({records, capacity});
    return absl::OkStatus();
  });
}

sortition_code sortition_receipts_get_seed_line(const sortition_receipts* receipts, char* buffer, size_t size,
                                                size_t* length, sortition_error** error) {
  return Call(error, [&]() -> absl::Status {
    const auto found = sortition::c::Find(receipts);
    if (!found.ok()) return found.status();
    if (length == nullptr) return sortition::c::Missing("length");
    const std::string line = (*found)->log()->SeedLine();
    sortition::c::CopyText(line, buffer, size);
    *length = line.size();
    return absl::OkStatus();
  });
}

sortition_code sortition_receipts_await_end(const sortition_receipts* receipts, uint64_t timeout_ns,
                                            sortition_error** error) {
  return Call(error, [&]() -> absl::Status {
    const auto found = sortition::c::Find(receipts);
    if (!found.ok()) return found.status();
    const absl::Duration most = absl::Nanoseconds(static_cast<int64_t>(std::min<uint64_t>(timeout_ns, INT64_MAX)));
    if ((*found)->log()->AwaitEnd(most)) return absl::OkStatus();
    return absl::DeadlineExceededError("receipts: the last signature has not come");
  });
}

sortition_code sortition_receipts_close(sortition_receipts* receipts, sortition_error** error) {
  return Call(error, [&] { return AllReceipts::All().Remove(receipts, "receipts").status(); });
}

}  // extern "C"
