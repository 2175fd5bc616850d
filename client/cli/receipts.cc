// sortitionctl receipts: receipts as JSON, the Merkle root of files, and the inclusion of one receipt in them.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "client/cli/command.h"
#include "client/receipts/receipt_check.h"
#include "client/receipts/receipt_file.h"
#include "service/receipt/receipt_json.h"
#include "service/receipt/receipt_tree.h"

ABSL_DECLARE_FLAG(std::string, chain);  // the chain of the receipt to prove
ABSL_FLAG(absl::optional<uint64_t>, index, absl::nullopt, "receipts prove: index of the receipt in the chain --chain");

namespace sortition::cli {
namespace {

using service::ReceiptRecord;
using service::ReceiptTree;

Outcome Export(const std::string& path) {
  const absl::Status status = client::ReadRecords(path, [](uint8_t type, std::string_view body) {
    auto json = service::ToJson(static_cast<ReceiptRecord>(type), body);
    if (!json.ok()) return json.status();
    std::fwrite(absl::StrCat(*json, "\n").c_str(), 1, json->size() + 1, stdout);
    return absl::OkStatus();
  });
  return status.ok() ? Outcome::kDone : Fail(status);
}

// The receipts of files as a tree, and the one to prove.
struct ShownTree {
  ReceiptTree tree;
  std::string opening;  // body; of the chain --chain
  std::string receipt;  // body; empty: not there
  uint64_t leaf = 0;
};

// Reads the receipts of all files. `chain` and `index` name the one to prove, if there are any.
absl::Status ReadShownTree(absl::Span<const std::string> paths, const std::string& chain, uint64_t index,
                           ShownTree* shown) {
  for (const std::string& path : paths) {
    const absl::Status status = client::ReadRecords(path, [&](uint8_t type, std::string_view body) {
      if (type == static_cast<uint8_t>(ReceiptRecord::kOpening) && shown->opening.empty() &&
          client::Hex(service::ChainIdOf(service::HashBytes(body))) == chain) {
        shown->opening = body;
      }
      if (type != static_cast<uint8_t>(ReceiptRecord::kReceipt)) return absl::OkStatus();
      const auto receipt = service::DecodeReceipt(body);
      if (!receipt) return absl::InvalidArgumentError("a receipt with other fields");
      const bool is_shown = shown->receipt.empty() && receipt->index == index && client::Hex(receipt->chain) == chain;
      if (is_shown) {
        shown->receipt = body;
        shown->leaf = shown->tree.leaves();
      }
      shown->tree.Add(body, is_shown);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
  }
  if (shown->tree.leaves() == 0) return absl::InvalidArgumentError("the files have no receipt, and so no root");
  return absl::OkStatus();
}

Outcome Root(absl::Span<const std::string> paths) {
  ShownTree shown;
  if (absl::Status status = ReadShownTree(paths, "", 0, &shown); !status.ok()) return Fail(status);
  std::printf("{\"leaves\":\"%llu\",\"root\":\"%s\",\"type\":\"root\"}\n",
              static_cast<unsigned long long>(shown.tree.leaves()), client::Hex(shown.tree.Root()).c_str());
  return Outcome::kDone;
}

Outcome Prove(absl::Span<const std::string> paths) {
  const std::string chain = absl::GetFlag(FLAGS_chain);
  const auto index = absl::GetFlag(FLAGS_index);
  if (chain.empty() || !index) return Fail(absl::InvalidArgumentError("receipts prove takes --chain and --index"));
  ShownTree shown;
  if (absl::Status status = ReadShownTree(paths, chain, *index, &shown); !status.ok()) return Fail(status);
  if (shown.receipt.empty() || shown.opening.empty()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("the files have no receipt --index=", *index, " of --chain=", chain, ", or not its opening")));
  }
  const auto opening = service::ToJson(ReceiptRecord::kOpening, shown.opening);
  if (!opening.ok()) return Fail(opening.status());
  const auto receipt = service::ToJson(ReceiptRecord::kReceipt, shown.receipt);
  if (!receipt.ok()) return Fail(receipt.status());
  std::vector<std::string> path;
  for (const service::ReceiptHash& hash : shown.tree.Path()) {
    path.push_back(absl::StrCat("\"", client::Hex(hash), "\""));
  }
  const std::string inclusion =
      absl::StrCat("{\"leaf\":\"", shown.leaf, "\",\"leaves\":\"", shown.tree.leaves(), "\",\"opening\":", *opening,
                   ",\"path\":[", absl::StrJoin(path, ","), "],\"receipt\":", *receipt, ",\"type\":\"inclusion\"}\n");
  std::fwrite(inclusion.data(), 1, inclusion.size(), stdout);
  return Outcome::kDone;
}

}  // namespace

Outcome Receipts(const std::vector<std::string>& arguments) {
  const auto paths = absl::MakeSpan(arguments).subspan(arguments.empty() ? 0 : 1);
  const std::string action = arguments.empty() ? "" : arguments[0];
  if (action == "export" && paths.size() == 1) return Export(paths[0]);
  if (action == "root" && !paths.empty()) return Root(paths);
  if (action == "prove" && !paths.empty()) return Prove(paths);
  return Fail(absl::InvalidArgumentError("receipts takes export FILE, root FILE..., or prove FILE..."));
}

}  // namespace sortition::cli
