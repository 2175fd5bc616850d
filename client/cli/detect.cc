// sortitionctl detect: whether a text of token ids carries a watermark.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "kernels/law/watermark.h"
#include "kernels/row.h"
#include "sortition/watermark.h"

ABSL_FLAG(std::string, key_file, "", "detect: a file with the watermark's key, a decimal number");
ABSL_FLAG(uint32_t, context_width, sortition::law::kDefaultWatermarkWidth, "detect: the watermark's context_width");

namespace sortition::cli {
namespace {

absl::StatusOr<uint64_t> ReadKey(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t key = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &key)) {
    return absl::InvalidArgumentError(absl::StrCat("--key_file=", path, ": holds no number of 64 bits"));
  }
  return key;
}

absl::StatusOr<std::vector<uint32_t>> ReadTokens(std::istream& input) {
  std::vector<uint32_t> tokens;
  for (std::string word; input >> word;) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(word, &token) || token >= kernels::kMaxVocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("token ", tokens.size(), ", ", word, ", is no token id"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

Outcome Detect(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return Fail(absl::InvalidArgumentError("detect takes one file of token ids, or -"));
  client::WatermarkOptions options;
  options.context_width = absl::GetFlag(FLAGS_context_width);
  if (options.context_width < 1 || options.context_width > law::kMaxWatermarkWidth) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("--context_width must be 1..", law::kMaxWatermarkWidth)));
  }
  const absl::StatusOr<uint64_t> key = ReadKey(absl::GetFlag(FLAGS_key_file));
  if (!key.ok()) return Fail(key.status());
  options.key = *key;
  std::ifstream file;
  if (arguments[0] != "-") file.open(arguments[0]);
  if (arguments[0] != "-" && !file) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(arguments[0], " cannot be read")));
  }
  const auto tokens = ReadTokens(arguments[0] == "-" ? std::cin : file);
  if (!tokens.ok()) return Fail(tokens.status());
  const client::WatermarkEvidence evidence = client::DetectWatermark(options, *tokens);
  const char* form = WantsJson() ? "{\"tokens\": %llu, \"score\": %.6g, \"p_value\": %.6g}\n"
                                 : "tokens %llu\nscore %.6g\np_value %.6g\n";
  std::printf(form, static_cast<unsigned long long>(evidence.tokens), evidence.score, evidence.p_value);
  return Outcome::kDone;
}

}  // namespace sortition::cli
