// The operator's settings of receipts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sortition::service {

struct ReceiptSettings {
  std::function<absl::Time()> time_of_day = [] { return absl::Now(); };  // for people: in signatures and names of files
  std::string key_file;  // private key (ReceiptKey::OfPem); followed when it is replaced
  std::string folder;    // in which receipts are written; empty = nowhere
  // Every sequence has receipts, which are written to the folder. Otherwise those whose worker asks for them.
  bool all = false;
  // While receipts cannot be written, rows that need one are refused. Otherwise such rows are answered, and receipts
  // beyond the queue's room are lost.
  bool required = false;
  uint64_t file_bytes = uint64_t{64} << 20;   // a file of this size ends
  uint64_t queue_bytes = uint64_t{64} << 20;  // receipts that wait to be written
};

}  // namespace sortition::service
