// Prints stories while they are written, in whole lines that name their story, for terminals and logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/demo/worker/author.h"
#include "client/demo/worker/story.h"

namespace sortition::demo {

// Not thread-safe. Writes to stdout; in colour if that is a terminal.
class Page {
 public:
  // The first line of each story begins with its prompt. `learned` is not owned and outlives the page.
  Page(const Learned* learned, std::span<const Story> stories);

  // Adds the next token of a story. A line is printed when it is full or ends.
  void Add(size_t story, uint32_t token);
  // Prints the rest of every line.
  void Finish();

  // Prints a token with its log probability and its alternatives.
  void PrintChoice(uint32_t position, const v1::DrawResult& draw) const;

 private:
  std::string Text(uint32_t token) const;
  void PrintLine(size_t story, std::string_view line) const;

  const Learned& learned_;
  const bool colour_;
  std::vector<std::string> lines_;  // not printed yet
};

// Prints a summary: tokens, bytes and times.
void PrintSummary(const WritingResult& result);

}  // namespace sortition::demo
