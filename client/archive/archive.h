// An archive of one machine's proof (docs/proof.md): how it is written, read and compared.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sortition::archive {

// Contents by name.
using Files = std::map<std::string, std::string>;

// Returns a JSON object of texts, a member a line.
std::string JsonObject(const std::vector<std::pair<std::string, std::string>>& members);

// Returns the bytes of an archive of all files but the manifest, which it makes.
std::string MakeArchive(Files files);

// Reads an archive's bytes and checks them against the manifest and the settings of this release. The error begins with
// the problem's name in docs/proof.md. Tokens, logprobs and receipts are not judged.
absl::StatusOr<Files> OpenArchive(std::string_view archive);

// Reads a file. The error names it.
absl::StatusOr<Files> ReadArchive(const std::string& path);

// Returns how many texts of each setting an opened archive has at most; kAllTexts if it has all.
uint32_t TextsOfEach(const Files& files);

struct Comparison {
  uint32_t texts = 0;              // that both archives have
  std::vector<std::string> lines;  // about those that differ
};
absl::StatusOr<Comparison> CompareTexts(const Files& one, const Files& other);

}  // namespace sortition::archive
