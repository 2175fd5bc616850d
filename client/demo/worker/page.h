// Shows stories while they are being written: whole lines, each marked with its story, so that it reads well on a
// terminal and in a log.
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
  // Every story's first line begins with its prompt. `learned` is not owned and outlives the page.
  Page(const Learned* learned, std::span<const Story> stories);

  // The next token of a story. Its line is printed when it is full or ends.
  void Add(size_t story, uint32_t token);
  // Prints what is left of every line.
  void Finish();

  // One token with its log probability and the alternatives it was drawn against.
  void PrintChoice(uint32_t position, const v1::DrawResult& draw) const;

 private:
  std::string Text(uint32_t token) const;
  void PrintLine(size_t story, std::string_view line) const;

  const Learned& learned_;
  const bool colour_;
  std::vector<std::string> lines_;  // begun and not printed
};

// A summary of what was written and what it took.
void PrintSummary(const WritingResult& result);

}  // namespace sortition::demo
