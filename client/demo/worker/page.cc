// Formats lines, colours and the summary.
#include "client/demo/worker/page.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace sortition::demo {
namespace {

constexpr size_t kLineWidth = 96;

// Makes a token's spaces and line breaks visible: they are part of tokens, and a line break would break the table.
std::string Visible(const std::string& text) {
  std::string visible;
  for (char c : text) visible += c == '\n' ? "\\n" : std::string(1, c);
  return absl::StrCat("\"", visible, "\"");
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// Returns the smallest value that at least `share` of `sorted` do not exceed.
absl::Duration Quantile(const std::vector<absl::Duration>& sorted, double share) {
  const size_t rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

Page::Page(const Learned* learned, std::span<const Story> stories)
    : learned_(*learned), colour_(isatty(STDOUT_FILENO) == 1) {
  for (const Story& story : stories) lines_.push_back(story.prompt);
}

std::string Page::Text(uint32_t token) const {
  if (token == learned_.model.end_of_text()) return "[the end]";
  return learned_.vocabulary.Decode({&token, 1});
}

void Page::Add(size_t story, uint32_t token) {
  std::string& line = lines_[story];
  if (token == learned_.model.end_of_text()) line += ' ';
  line += Text(token);
  for (size_t end; (end = line.find('\n')) != std::string::npos;) {
    PrintLine(story, line.substr(0, end));
    line.erase(0, end + 1);
  }
  while (line.size() > kLineWidth) {
    const size_t space = line.rfind(' ', kLineWidth);
    const size_t end = space == std::string::npos || space == 0 ? kLineWidth : space;
    PrintLine(story, line.substr(0, end));
    line.erase(0, end + (line[end] == ' ' ? 1 : 0));
  }
  if (token == learned_.model.end_of_text()) {
    PrintLine(story, line);
    line.clear();
  }
}

void Page::Finish() {
  for (size_t story = 0; story < lines_.size(); ++story) {
    if (!lines_[story].empty()) PrintLine(story, lines_[story] + " ...");
    lines_[story].clear();
  }
}

void Page::PrintLine(size_t story, std::string_view line) const {
  const std::string number = absl::StrCat(story + 1);
  if (colour_) {
    std::printf("\x1b[%zum%3s |\x1b[0m %.*s\n", 31 + story % 6, number.c_str(), static_cast<int>(line.size()),
                line.data());
  } else {
    std::printf("%3s | %.*s\n", number.c_str(), static_cast<int>(line.size()), line.data());
  }
  std::fflush(stdout);
}

void Page::PrintChoice(uint32_t position, const v1::DrawResult& draw) const {
  const v1::Logprobs& logprobs = draw.processed();
  std::string alternatives;
  for (int i = 0; i < logprobs.top_tokens_size(); ++i) {
    absl::StrAppend(&alternatives, i == 0 ? "" : "  ", Visible(Text(logprobs.top_tokens(i))), " ",
                    absl::SixDigits(std::round(1000 * std::exp(logprobs.top_logprobs(i))) / 10), "%");
  }
  std::printf("  %8u  %-14s  %8.4f  %4u   %s\n", position, Visible(Text(draw.token())).c_str(), logprobs.logprob(),
              logprobs.rank(), alternatives.c_str());
  std::fflush(stdout);
}

void PrintSummary(const WritingResult& result) {
  uint64_t tokens = 0;
  for (const auto& story : result.tokens) tokens += story.size();
  std::vector<absl::Duration> steps = result.steps;
  std::sort(steps.begin(), steps.end());
  const double total = absl::ToDoubleSeconds(result.model_time + result.sampling_time);
  const double model_share = total > 0 ? 100 * absl::ToDoubleSeconds(result.model_time) / total : 0;
  std::printf("tokens          %llu in %zu steps, %.0f tokens/s\n", static_cast<unsigned long long>(tokens),
              steps.size(), static_cast<double>(tokens) / total);
  std::printf("step latency    p50 %.2f ms, p99 %.2f ms\n", Milliseconds(Quantile(steps, 0.5)),
              Milliseconds(Quantile(steps, 0.99)));
  std::printf("logits sent     %.1f MB, %.0f MB/s\n", static_cast<double>(result.bytes_sent) / 1e6,
              static_cast<double>(result.bytes_sent) / 1e6 / absl::ToDoubleSeconds(result.sampling_time));
  std::printf("time            %.0f%% model, %.0f%% sampling through the service\n", model_share, 100 - model_share);
}

}  // namespace sortition::demo
