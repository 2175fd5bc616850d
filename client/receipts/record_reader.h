// Splits a stream of bytes into the records of receipts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace sortition::client {

// Not thread-safe. Keeps at most one record, and none that is too long.
class RecordReader {
 public:
  // A record's type, and its body until the function returns.
  using Take = absl::FunctionRef<void(uint8_t type, std::string_view body)>;

  // Takes the next bytes of the file. Returns the length of a record that is too long: the rest of the file is not read
  // then.
  std::optional<uint32_t> Read(std::string_view bytes, Take take);
  // Ends a file. Returns how many of its last bytes are part of a record that is cut.
  size_t End();

  // Returns the memory of the bytes that are kept.
  size_t held_bytes() const { return left_.capacity(); }

 private:
  std::string left_;  // the begin of a record
  bool is_lost_ = false;
};

}  // namespace sortition::client
