// DRY's index and that of n-grams.
#include "service/sequence/history_index.h"

namespace sortition::service {

HistoryIndex::HistoryIndex(const HistoryOptions& options, const TokenLog& log)
    : ngram_prefix_(options.no_repeat_ngram == 0 ? 0 : options.no_repeat_ngram - 1) {
  if (options.dry.on()) dry_.emplace(options.dry, log);
  if (options.no_repeat_ngram == 0) return;
  ngrams_.emplace(ngram_prefix_, ngram_prefix_);
  for (uint32_t at = ngram_prefix_; at < log.length(); ++at) ngrams_->AddNewest(log, at);
}

void HistoryIndex::Pushed(const TokenLog& log) {
  if (dry_) dry_->Pushed(log);
  if (ngrams_ && log.length() > ngram_prefix_) ngrams_->AddNewest(log, log.length() - 1);
}

void HistoryIndex::Popping(const TokenLog& log, uint32_t length) {
  if (dry_) dry_->Popping(log, length);
  if (ngrams_ && length > ngram_prefix_) ngrams_->RemoveNewest(log);
}

std::vector<DryTerm> HistoryIndex::DryTerms(const TokenLog& log, const HistoryOptions& options) const {
  return dry_ ? dry_->Terms(log, options.dry) : std::vector<DryTerm>();
}

std::vector<uint32_t> HistoryIndex::RepeatedNgrams(const TokenLog& log) const {
  std::vector<uint32_t> tokens;
  if (!ngrams_ || log.length() < ngram_prefix_) return tokens;
  std::vector<ContextIndex::Found> found;
  ngrams_->Find(log, log.length(), &found);
  tokens.reserve(found.size());
  for (const ContextIndex::Found& one : found) tokens.push_back(one.token);
  return tokens;
}

uint64_t HistoryIndex::bytes() const {
  return sizeof(*this) + (dry_ ? dry_->bytes() : 0) + (ngrams_ ? ngrams_->bytes() : 0);
}

}  // namespace sortition::service
