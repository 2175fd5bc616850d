// Whole records are read where they lie; one that is cut by the end of the bytes is kept.
#include "client/receipts/record_reader.h"

#include <algorithm>
#include <cstring>

#include "service/receipt/record.h"

namespace sortition::client {

std::optional<uint32_t> RecordReader::Read(std::string_view bytes, Take take) {
  while (!is_lost_ && !bytes.empty()) {
    const bool joins = !left_.empty();
    std::string_view source = bytes;
    if (joins) {
      size_t wanted = service::kRecordHeaderBytes;
      if (left_.size() >= wanted) {
        uint32_t length = 0;
        std::memcpy(&length, left_.data() + 1, sizeof(length));
        wanted += length;
      }
      const size_t more = std::min(wanted - left_.size(), bytes.size());
      left_.append(bytes.substr(0, more));
      bytes.remove_prefix(more);
      source = left_;
    }
    uint32_t length = 0;
    if (source.size() >= service::kRecordHeaderBytes) std::memcpy(&length, source.data() + 1, sizeof(length));
    if (length > service::kMaxRecordBytes) {
      is_lost_ = true;
      left_.clear();
      return length;
    }
    if (source.size() < service::kRecordHeaderBytes || source.size() < service::kRecordHeaderBytes + length) {
      if (!joins) {
        left_.assign(bytes);
        return std::nullopt;
      }
      continue;  // with more bytes, if there are any
    }
    take(static_cast<uint8_t>(source[0]), source.substr(service::kRecordHeaderBytes, length));
    if (joins) {
      left_.clear();
    } else {
      bytes.remove_prefix(service::kRecordHeaderBytes + length);
    }
  }
  return std::nullopt;
}

size_t RecordReader::End() {
  const size_t cut = left_.size();
  is_lost_ = false;
  left_.clear();
  return cut;
}

}  // namespace sortition::client
