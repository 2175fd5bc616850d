// The findings of a verifier for people: as text, and as one HTML file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sortition/receipt_verifier.h"

namespace sortition::client {

// Counts of check 3.
struct RowCounts {
  uint64_t compared = 0;  // rows of logits that were run
  uint64_t agreed = 0;    // agreeing ones among these
  uint64_t no_mask = 0;   // not run: the step had a mask that was not given
  bool has_tolerance = false;
};

struct ReceiptReport : ReceiptFindings {
  std::string title;       // names of the files
  bool has_keys = false;   // the caller named the keys that it trusts
  bool has_seeds = false;  // the caller gave openings of seeds
  std::optional<RowCounts> rows;

  // Every check that was asked for was made for every receipt.
  bool is_complete() const;
};

// Returns a line for each check: for how many receipts it was made, and why not for the others.
std::vector<std::string> ToLines(const ReceiptReport& report);

// Return the whole report. The HTML needs no other file.
std::string ToText(const ReceiptReport& report);
std::string ToHtml(const ReceiptReport& report);

}  // namespace sortition::client
