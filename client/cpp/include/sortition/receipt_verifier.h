// Checks of receipts (docs/receipts.md), for programs that link sortition_receipts: signature and chain, and the draw.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sortition::client {

class ReceiptCheck;

using ReceiptPublicKey = std::array<uint8_t, 32>;

// Reads a public key: PEM, or 64 hexadecimal digits. The error names the file.
absl::StatusOr<ReceiptPublicKey> ReadReceiptKey(const std::string& path);

// A seed and its salt, which open the commitment of a chain.
struct SeedOpening {
  uint64_t seed = 0;
  std::array<uint8_t, 16> salt = {};
};

// Parses lines of "SEED SALT". The error names the line.
absl::StatusOr<std::vector<SeedOpening>> ParseSeeds(std::string_view text);

// A defect that a verifier finds; the names are those of docs/receipts.md.
struct ReceiptProblem {
  std::string name;
  std::string chain;              // id in hexadecimal; empty if no chain is at fault
  std::optional<uint64_t> index;  // of the receipt
  std::string detail;             // for people
};

// Receipts by the checks that were made of them.
struct ReceiptCounts {
  uint64_t chains = 0;
  uint64_t ended = 0;
  uint64_t receipts = 0;
  uint64_t signed_receipts = 0;
  uint64_t drawn = 0;     // token and logprob drawn again
  uint64_t no_seed = 0;   // the logprob alone was checked, since the chain's seed is not open
  uint64_t no_draft = 0;  // accepted drafts, and tokens in place of drafts
  uint64_t watermarked = 0;
  uint64_t adapted = 0;   // drawn by adaptive-p
  uint64_t unlisted = 0;  // without kept tokens
  uint64_t other_law = 0;
  uint64_t before = 0;  // of chains that begin before the file
};

// Receipts agree if there is no problem, and only as far as `counts` says that they were checked.
struct ReceiptFindings {
  ReceiptCounts counts;
  // Public keys of valid signatures in hexadecimal, with the number of receipts that each signed.
  std::map<std::string, uint64_t> signers;
  std::vector<ReceiptProblem> problems;  // the first 1,000, in the order of the files
  std::map<std::string, uint64_t> problem_counts;

  // Something was found to be wrong.
  bool differs() const { return !problem_counts.empty(); }
};

// Not thread-safe. Holds one record, some 700 bytes a chain and the first problems.
class ReceiptVerifier {
 public:
  struct Options {
    std::vector<ReceiptPublicKey> keys;  // trusted; empty = every key
    std::vector<SeedOpening> seeds;      // the draws of other chains are not checked
  };
  explicit ReceiptVerifier(Options options);
  ~ReceiptVerifier();

  // Takes the next bytes of a file, in pieces of any size.
  void Read(std::string_view bytes);
  // Ends a file. The next one continues with its own records, and with the same chains.
  void EndFile();
  // Ends all files. Call it once.
  ReceiptFindings Finish();

 private:
  const std::unique_ptr<ReceiptCheck> check_;
};

}  // namespace sortition::client
