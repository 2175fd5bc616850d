// The indexes of DRY, of n-grams and of the watermark's contexts.
#include "service/text/history_index.h"

namespace sortition::service {

HistoryIndex::Contexts::Contexts(uint32_t tokens, const TokenLog& log) : length(tokens), index(tokens, tokens) {
  for (uint32_t at = length; at < log.length(); ++at) index.AddNewest(log, at);
}

void HistoryIndex::Contexts::Pushed(const TokenLog& log) {
  if (log.length() > length) index.AddNewest(log, log.length() - 1);
}

void HistoryIndex::Contexts::Popping(const TokenLog& log, uint32_t tokens) {
  if (tokens > length) index.RemoveNewest(log);
}

ContextIndex::AllFound HistoryIndex::Contexts::Find(const TokenLog& log) const {
  ContextIndex::AllFound found;
  if (log.length() >= length) index.Find(log, log.length(), &found);
  return found;
}

HistoryIndex::HistoryIndex(const HistoryOptions& options, const TokenLog& log) {
  if (options.dry.on()) dry_.emplace(options.dry, log);
  if (options.no_repeat_ngram != 0) ngrams_.emplace(options.no_repeat_ngram - 1, log);
  if (options.watermark_skips) marked_.emplace(options.watermark_width, log);
}

void HistoryIndex::Pushed(const TokenLog& log) {
  if (dry_) dry_->Pushed(log);
  if (ngrams_) ngrams_->Pushed(log);
  if (marked_) marked_->Pushed(log);
}

void HistoryIndex::Popping(const TokenLog& log, uint32_t length) {
  if (dry_) dry_->Popping(log, length);
  if (ngrams_) ngrams_->Popping(log, length);
  if (marked_) marked_->Popping(log, length);
}

DryTermList HistoryIndex::DryTerms(const TokenLog& log, const HistoryOptions& options) const {
  return dry_ ? dry_->Terms(log, options.dry) : DryTermList();
}

std::vector<uint32_t> HistoryIndex::RepeatedNgrams(const TokenLog& log) const {
  std::vector<uint32_t> tokens;
  if (!ngrams_) return tokens;
  const ContextIndex::AllFound found = ngrams_->Find(log);
  tokens.reserve(found.size());
  for (const ContextIndex::Found& one : found) tokens.push_back(one.token);
  return tokens;
}

bool HistoryIndex::RepeatsMarkedContext(const TokenLog& log) const { return marked_ && !marked_->Find(log).empty(); }

uint64_t HistoryIndex::bytes() const {
  return sizeof(*this) + (dry_ ? dry_->bytes() : 0) + (ngrams_ ? ngrams_->index.bytes() : 0) +
         (marked_ ? marked_->index.bytes() : 0);
}

}  // namespace sortition::service
