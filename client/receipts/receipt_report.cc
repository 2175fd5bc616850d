// States the number of receipts for which each check was made.
#include "client/receipts/receipt_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sortition::client {
namespace {

constexpr size_t kShownProblems = 20;

void AddReason(uint64_t count, const char* why, std::vector<std::string>* reasons) {
  if (count > 0) reasons->push_back(absl::StrCat(count, " ", why));
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) absl::StrAppend(&text, text.empty() ? "" : ", ", part);
  return text;
}

std::string SignatureLine(const ReceiptReport& report) {
  const ReceiptCounts& counts = report.counts;
  std::string line =
      absl::StrCat("signature and chain: ", counts.signed_receipts, " of ", counts.receipts, " receipts");
  for (const auto& [key, receipts] : report.signers) absl::StrAppend(&line, "; key ", key, " signs ", receipts);
  if (!report.has_keys) absl::StrAppend(&line, "; not checked: whose key it is (--keys)");
  if (counts.before > 0) absl::StrAppend(&line, "; not checked: ", counts.before, " receipts before these files");
  if (counts.ended < counts.chains) {
    absl::StrAppend(&line, "; not checked: whether ", counts.chains - counts.ended, " of ", counts.chains,
                    " sequences continue");
  }
  return line;
}

std::string DrawLine(const ReceiptReport& report) {
  const ReceiptCounts& counts = report.counts;
  std::vector<std::string> reasons;
  AddReason(counts.no_seed, "without an opened seed (--seeds)", &reasons);
  AddReason(counts.no_draft, "drawn with a drafter's probabilities", &reasons);
  AddReason(counts.watermarked, "with a watermark", &reasons);
  AddReason(counts.adapted, "drawn by adaptive_p", &reasons);
  AddReason(counts.unlisted, "without a list of kept tokens", &reasons);
  AddReason(counts.other_law, "of an unknown law or unknown parameters", &reasons);
  std::string line = absl::StrCat("draw: ", counts.drawn, " of ", counts.receipts, " tokens");
  if (!reasons.empty()) absl::StrAppend(&line, "; not checked: ", Joined(reasons));
  return line;
}

std::string RowLine(const ReceiptReport& report) {
  if (!report.rows) return "row: not checked: no logits were given (--logits)";
  const RowCounts& rows = *report.rows;
  std::string line = absl::StrCat("row: ", rows.agreed, " of ", report.counts.receipts, " tokens");
  if (rows.has_tolerance) absl::StrAppend(&line, " by the margin of the race");
  std::vector<std::string> reasons;
  AddReason(report.counts.receipts - rows.compared - rows.no_mask, "without logits", &reasons);
  AddReason(rows.no_mask, "whose step's mask was not given (--masks)", &reasons);
  if (!reasons.empty()) absl::StrAppend(&line, "; not checked: ", Joined(reasons));
  return line;
}

std::string Verdict(const ReceiptReport& report) {
  if (report.differs()) return "DIFFERS";
  return report.is_complete() ? "AGREES in what was checked" : "INCOMPLETE: a check that was asked for was not made";
}

std::string PlaceOf(const ReceiptProblem& problem) {
  std::string place;
  if (!problem.chain.empty()) absl::StrAppend(&place, "chain ", problem.chain);
  if (problem.index) absl::StrAppend(&place, place.empty() ? "" : " ", "receipt ", *problem.index);
  return place;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

}  // namespace

bool ReceiptReport::is_complete() const {
  return counts.signed_receipts == counts.receipts && (!has_seeds || counts.drawn == counts.receipts) &&
         (!rows || rows->agreed == counts.receipts);
}

std::vector<std::string> ToLines(const ReceiptReport& report) {
  return {SignatureLine(report), DrawLine(report), RowLine(report)};
}

std::string ToText(const ReceiptReport& report) {
  std::string text = absl::StrCat(report.counts.receipts, " receipts of ", report.counts.chains, " sequences\n");
  for (const std::string& line : ToLines(report)) absl::StrAppend(&text, line, "\n");
  for (const auto& [name, count] : report.problem_counts) absl::StrAppend(&text, "problem ", name, ": ", count, "\n");
  for (size_t i = 0; i < report.problems.size() && i < kShownProblems; ++i) {
    const ReceiptProblem& problem = report.problems[i];
    absl::StrAppend(&text, "  ", problem.name, " ", PlaceOf(problem), ": ", problem.detail, "\n");
  }
  absl::StrAppend(&text, "verdict: ", Verdict(report), "\n");
  return text;
}

std::string ToHtml(const ReceiptReport& report) {
  const char* const colour = report.differs() ? "#b00020" : report.is_complete() ? "#1b5e20" : "#8a6d00";
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Receipts</title>\n"
      "<style>body{font:16px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
      "td,th{text-align:left;padding:.2em .8em .2em 0;vertical-align:top;overflow-wrap:anywhere}</style>\n"
      "<h1>Receipts of ",
      Escaped(report.title), "</h1>\n<p><strong style=\"color:", colour, "\">", Verdict(report), "</strong>. ",
      report.counts.receipts, " receipts of ", report.counts.chains, " sequences.</p>\n<ul>\n");
  for (const std::string& line : ToLines(report)) absl::StrAppend(&html, "<li>", Escaped(line), "</li>\n");
  absl::StrAppend(&html, "</ul>\n");
  if (report.differs()) {
    uint64_t all = 0;
    for (const auto& [name, count] : report.problem_counts) all += count;
    absl::StrAppend(&html, "<h2>", all, " problems, of which ", report.problems.size(),
                    " are listed</h2>\n<table>\n<tr><th>problem</th><th>where</th><th></th></tr>\n");
    for (const ReceiptProblem& problem : report.problems) {
      absl::StrAppend(&html, "<tr><td>", Escaped(problem.name), "</td><td>", PlaceOf(problem), "</td><td>",
                      Escaped(problem.detail), "</td></tr>\n");
    }
    absl::StrAppend(&html, "</table>\n");
  }
  return absl::StrCat(html,
                      "<p>A signature says who stated the receipts. The draw says that the seed chose among the kept "
                      "tokens. The row says that the logits keep these tokens. docs/receipts.md has the format.</p>\n");
}

}  // namespace sortition::client
