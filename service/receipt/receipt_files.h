// Files of receipts in a folder: the current one grows record by record until it is full, and then another begins.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sortition::service {

// A file is named receipts-TIME-NUMBER.bin: milliseconds since 1970 at the start of the process, and its number in the
// process. An existing file is never continued. Not thread-safe. Blocks as the file system does.
class ReceiptFiles {
 public:
  ReceiptFiles(std::string folder, absl::Time started);
  ~ReceiptFiles();
  ReceiptFiles(const ReceiptFiles&) = delete;
  ReceiptFiles& operator=(const ReceiptFiles&) = delete;

  // Appends all of these bytes to the current file, or none. The error names the file and the reason. The bytes are the
  // kernel's when this returns: they outlive the process, but not the machine, until Sync.
  absl::Status Write(std::string_view bytes);
  // Makes the written records outlive the machine.
  absl::Status Sync();
  // Ends the current file: the next Write begins another one.
  void Rotate();

  // Returns the number of the file that the next Write goes to.
  uint32_t number() const { return number_; }
  uint64_t size() const { return size_; }

 private:
  absl::Status Open();

  const std::string folder_;
  const uint64_t started_;
  uint32_t number_ = 0;
  std::string path_;
  int file_ = -1;
  uint64_t size_ = 0;  // of the current file
};

}  // namespace sortition::service
