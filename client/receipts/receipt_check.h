// The checks of receipts (docs/receipts.md), over a stream of bytes: signature and chain, and the draw from kept
// tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "client/receipts/record_reader.h"
#include "service/receipt/record.h"
#include "service/text/sequence_spec.h"
#include "sortition/receipt_verifier.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::client {

// A chain as far as it was read.
struct CheckedChain {
  std::string request_id;
  // Null: of another law, or with parameters that are unknown here, or with wrong integers. Chains with the same
  // options share these two.
  std::shared_ptr<const service::SequenceSpec> spec;
  std::shared_ptr<const v1::SamplingParameters> parameters;
  std::optional<uint64_t> seed;  // if an opening was given
  bool has_watermark = false;
  bool has_ended = false;
  bool fits = true;                // no receipt was out of place
  std::optional<uint64_t> first;   // index of the first receipt that was read
  uint64_t receipts = 0;           // of the chain so far, including those before `first`
  service::ReceiptHash hash = {};  // the last one's
  uint64_t unsigned_receipts = 0;  // since the last valid signature
};

// Not thread-safe. Holds one record, some 700 bytes a chain and the first problems.
class ReceiptCheck {
 public:
  struct Options {
    std::vector<ReceiptPublicKey> keys;  // trusted; empty = every key
    std::vector<SeedOpening> seeds;
    // Called for each receipt of a known chain, after its checks; null = not.
    std::function<void(const std::string& id, const CheckedChain&, const service::Receipt&)> on_receipt = nullptr;
  };
  explicit ReceiptCheck(Options options);

  // Takes the next bytes of the file. Keeps at most one record of them, and none that is too long.
  void Read(std::string_view bytes);
  // Ends a file. The next one continues with its own records, and with the same chains.
  void EndFile();
  // Ends all files.
  void Finish();

  // Returns the memory of the bytes that are kept.
  size_t held_bytes() const { return reader_.held_bytes(); }

  // `problems` are the first kMostProblems.
  static constexpr size_t kMostProblems = 1000;
  const ReceiptFindings& findings() const { return findings_; }
  const ReceiptCounts& counts() const { return findings_.counts; }
  const std::vector<ReceiptProblem>& problems() const { return findings_.problems; }
  const std::map<std::string, uint64_t>& problem_counts() const { return findings_.problem_counts; }
  // Chains by their ids.
  const absl::flat_hash_map<std::string, CheckedChain>& chains() const { return chains_; }
  void Report(std::string name, std::string_view chain, std::optional<uint64_t> index, std::string detail);

 private:
  void TakeRecord(uint8_t type, std::string_view body);
  void TakeOpening(std::string_view body);
  void SetOptions(const service::ReceiptOpening& opening, CheckedChain* chain);
  void TakeReceipt(std::string_view body);
  void TakeSignature(std::string_view body);
  void CheckDraw(const CheckedChain& chain, const std::string& id, const service::Receipt& receipt);

  const Options options_;
  RecordReader reader_;
  absl::flat_hash_map<std::string, CheckedChain> chains_;
  // Options of chains, by a hash of the opening fields that decide them.
  std::map<service::ReceiptHash,
           std::pair<std::shared_ptr<const service::SequenceSpec>, std::shared_ptr<const v1::SamplingParameters>>>
      options_of_chains_;
  std::map<service::ReceiptHash, std::pair<SeedOpening, bool>> seeds_;  // by commitment, with use
  ReceiptFindings findings_;
};

// Returns bytes as hexadecimal digits.
template <size_t size>
std::string Hex(const std::array<uint8_t, size>& bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), size});
}

}  // namespace sortition::client
