// The text the demo's language model learns from: tales, letters, dialogues and notes written for this project.
#pragma once

#include <string_view>
#include <vector>

namespace sortition::demo {

// Returns all texts of the corpus in a fixed order: about 120 texts, 80 KB in total. ASCII; the paragraphs of a text
// are separated by one newline, and a text does not end with one. The views stay valid for the life of the program.
// Thread-safe.
std::vector<std::string_view> CorpusTexts();

}  // namespace sortition::demo
