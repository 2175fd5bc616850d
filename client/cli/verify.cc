// sortitionctl verify: checks files of receipts.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "client/cli/command.h"
#include "client/receipts/receipt_check.h"
#include "client/receipts/receipt_file.h"
#include "client/receipts/receipt_report.h"
#include "client/receipts/receipt_rows.h"
#include "client/receipts/row_file.h"
#include "service/receipt/receipt_key.h"

using Texts = std::vector<std::string>;

ABSL_FLAG(
    Texts, keys, {},
    "verify: files of public keys that are trusted, by commas: PEM, or hexadecimal digits; none = any key counts");
ABSL_FLAG(std::string, seeds, "", "verify: file of opened seeds, lines of SEED SALT; without it no draw is checked");
ABSL_FLAG(std::string, logits, "",
          "verify: file with the rows of one sequence in the order of its receipts: a .npy array or raw elements "
          "(--dtype); without it no row is checked");
ABSL_FLAG(
    std::string, masks, "",
    "verify, replay: file with packed masks of the steps of that sequence, in any order: a .npy array of int32, or raw "
    "words; a row whose step had another mask is not checked");
ABSL_FLAG(
    std::string, chain, "",
    "verify: id of the sequence that --logits belongs to; the first one if absent. receipts prove: id of the chain");
ABSL_FLAG(absl::optional<double>, tolerance, absl::nullopt,
          "verify: the logits were computed again: a token may lose the race by this many nats");
ABSL_DECLARE_FLAG(std::string, dtype);
ABSL_DECLARE_FLAG(Texts, prompt);  // the prompt of --logits's sequence
ABSL_FLAG(std::string, report, "", "verify: file to write the report to, as HTML");

namespace sortition::cli {
namespace {

absl::StatusOr<client::ReceiptRows::Options> RowsOfFlags() {
  client::ReceiptRows::Options rows;
  rows.path = absl::GetFlag(FLAGS_logits);
  rows.chain = absl::GetFlag(FLAGS_chain);
  rows.masks = absl::GetFlag(FLAGS_masks);
  if (!rows.masks.empty() && rows.path.empty()) return absl::InvalidArgumentError("--masks needs --logits");
  if (const auto tolerance = absl::GetFlag(FLAGS_tolerance)) rows.tolerance = *tolerance;
  if (rows.tolerance && !(*rows.tolerance >= 0 && std::isfinite(*rows.tolerance))) {
    return absl::InvalidArgumentError("--tolerance must be a finite number of nats, at least 0");
  }
  if (rows.tolerance && rows.path.empty()) return absl::InvalidArgumentError("--tolerance needs --logits");
  if (rows.tolerance && absl::GetFlag(FLAGS_seeds).empty()) {
    return absl::InvalidArgumentError("--tolerance needs --seeds: without a seed there is no race and no margin");
  }
  if (const std::string dtype = absl::GetFlag(FLAGS_dtype); !dtype.empty()) {
    const auto parsed = client::ParseDType(dtype);
    if (!parsed.ok()) return parsed.status();
    rows.dtype = *parsed;
  }
  for (const std::string& token : absl::GetFlag(FLAGS_prompt)) {
    if (!absl::SimpleAtoi(token, &rows.prompt.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--prompt: ", token, " is no token id"));
    }
  }
  return rows;
}

absl::StatusOr<client::ReceiptCheck::Options> OptionsOfFlags() {
  client::ReceiptCheck::Options options;
  for (const std::string& path : absl::GetFlag(FLAGS_keys)) {
    const auto key = service::ReadPublicKey(path);
    if (!key.ok()) return absl::InvalidArgumentError(absl::StrCat("--keys: ", key.status().message()));
    options.keys.push_back(*key);
  }
  const std::string seeds = absl::GetFlag(FLAGS_seeds);
  if (seeds.empty()) return options;
  auto parsed = client::ReadSeeds(seeds);
  if (!parsed.ok()) return parsed.status();
  options.seeds = *std::move(parsed);
  return options;
}

std::string ReportJson(const client::ReceiptReport& report) {
  const client::ReceiptCounts& counts = report.counts;
  std::vector<std::string> problems;
  for (const auto& [name, count] : report.problem_counts) problems.push_back(absl::StrCat("\"", name, "\": ", count));
  const char* verdict = report.differs() ? "differs" : report.is_complete() ? "agrees" : "incomplete";
  return absl::StrCat("{\"verdict\": \"", verdict, "\", \"chains\": ", counts.chains,
                      ", \"receipts\": ", counts.receipts, ", \"signed\": ", counts.signed_receipts,
                      ", \"drawn\": ", counts.drawn, ", \"rows\": ", report.rows ? report.rows->agreed : 0,
                      ", \"problems\": {", absl::StrJoin(problems, ", "), "}}\n");
}

}  // namespace

Outcome Verify(const std::vector<std::string>& arguments) {
  if (arguments.empty())
    return Fail(absl::InvalidArgumentError("verify takes files of receipts, in their order, or -"));
  auto options = OptionsOfFlags();
  if (!options.ok()) return Fail(options.status());
  client::ReceiptReport report;
  report.title = absl::StrJoin(arguments, ", ");
  report.has_keys = !options->keys.empty();
  report.has_seeds = !absl::GetFlag(FLAGS_seeds).empty();
  auto row_options = RowsOfFlags();
  if (!row_options.ok()) return Fail(row_options.status());
  const bool has_rows = !row_options->path.empty();
  client::ReceiptRows rows(*std::move(row_options));
  std::optional<client::ReceiptCheck> made;
  if (has_rows) {
    options->on_receipt = [&](const std::string& id, const client::CheckedChain& chain,
                              const service::Receipt& receipt) { rows.Take(id, chain, receipt, &*made); };
  }
  client::ReceiptCheck& check = made.emplace(*std::move(options));
  for (const std::string& path : arguments) {
    if (absl::Status status = client::ReadReceipts(path, &check); !status.ok()) return Fail(status);
  }
  check.Finish();
  if (!rows.status().ok()) return Fail(rows.status());
  if (has_rows) report.rows = rows.counts();
  static_cast<client::ReceiptFindings&>(report) = check.findings();
  if (const std::string path = absl::GetFlag(FLAGS_report); !path.empty()) {
    std::ofstream file(path);
    file << client::ToHtml(report);
    if (!file.flush()) return Fail(absl::InvalidArgumentError(absl::StrCat("--report: ", path, " cannot be written")));
  }
  std::fputs((WantsJson() ? ReportJson(report) : client::ToText(report)).c_str(), stdout);
  if (report.differs()) return Outcome::kDiffers;
  return report.is_complete() ? Outcome::kDone : Outcome::kIncomplete;
}

}  // namespace sortition::cli
