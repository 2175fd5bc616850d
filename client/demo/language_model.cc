// Counts n-grams, and mixes the counts of each length.
#include "client/demo/language_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"

namespace sortition::demo {
namespace {

constexpr std::string_view kTales =
#include "tales.inc"
    ;

// Judges a byte independently of the locale.
bool IsPartOfWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '\'';
}

// Returns the last `length` tokens of a context. Before the start of a text stand ends of texts.
std::vector<uint32_t> Last(std::span<const uint32_t> context, size_t length) {
  std::vector<uint32_t> last(length, LanguageModel::kEnd);
  for (size_t i = 0; i < length && i < context.size(); ++i) last[length - 1 - i] = context[context.size() - 1 - i];
  return last;
}

}  // namespace

std::vector<std::string_view> Tales() {
  std::vector<std::string_view> tales;
  std::string_view rest = kTales;
  rest.remove_suffix(1);  // the file's last newline
  for (size_t end; (end = rest.find("\n\n")) != std::string_view::npos; rest.remove_prefix(end + 2)) {
    tales.push_back(rest.substr(0, end));
  }
  tales.push_back(rest);
  return tales;
}

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
    size_t end = begin;
    while (end < text.size() && IsPartOfWord(text[end])) ++end;
    end = std::max(end, begin + 1);
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

LanguageModel::LanguageModel(std::span<const std::string_view> texts) : words_{""} {
  for (const std::string_view text : texts) {
    std::vector<uint32_t> context;
    const auto count = [&](uint32_t token) {
      for (size_t length = 0; length < kOrder; ++length) {
        Followers& followers = followers_[Last(context, length)];
        ++followers.total;
        ++followers.counts[token];
      }
      context.push_back(token);
    };
    for (const std::string_view word : Words(text)) {
      const auto [found, is_new] = tokens_.emplace(word, size());
      if (is_new) words_.push_back(found->first);
      count(found->second);
    }
    count(kEnd);
  }
}

std::vector<uint32_t> LanguageModel::Encode(std::string_view text) const {
  std::vector<uint32_t> tokens;
  for (const std::string_view word : Words(text)) {
    const auto found = tokens_.find(word);
    SORTITION_CHECK(found != tokens_.end());
    tokens.push_back(found->second);
  }
  return tokens;
}

// All probabilities after the shorter context together weigh as much as one occurrence after the longer one. So each
// token stays possible. The shortest context is the uniform distribution.
std::vector<float> LanguageModel::Logits(std::span<const uint32_t> context, size_t order) const {
  std::vector<double> probabilities(size(), 1.0 / size());
  for (size_t length = 0; length < order; ++length) {
    const auto found = followers_.find(Last(context, length));
    if (found == followers_.end()) break;
    const double weight = 1.0 / (found->second.total + 1.0);
    for (double& probability : probabilities) probability *= weight;
    for (const auto& [token, count] : found->second.counts) probabilities[token] += count * weight;
  }
  std::vector<float> logits;
  for (const double probability : probabilities) logits.push_back(static_cast<float>(std::log(probability)));
  return logits;
}

}  // namespace sortition::demo
