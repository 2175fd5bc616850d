// The indexes of DRY, of n-grams and of the watermark's contexts.
#include "service/text/history/history_index.h"

namespace sortition::service {

HistoryIndex::HistoryIndex(const HistoryOptions& options, const TokenLog& log) {
  if (options.dry.on()) dry_.emplace(options.dry, log);
  const auto fill = [&](uint32_t tokens, std::optional<SharedContexts>* contexts) {
    contexts->emplace(tokens, tokens).Fill(log);
  };
  if (options.no_repeat_ngram != 0) fill(options.no_repeat_ngram - 1, &ngrams_);
  if (options.watermark_skips) fill(options.watermark_width, &marked_);
}

void HistoryIndex::Pushed(const TokenLog& log) {
  if (dry_) dry_->Pushed(log);
  if (ngrams_) ngrams_->Pushed(log);
  if (marked_) marked_->Pushed(log);
}

void HistoryIndex::PushedAhead(const TokenLog& log) {
  if (dry_) dry_->PushedAhead(log);
}

void HistoryIndex::Popping(const TokenLog& log, uint32_t length) {
  if (dry_) dry_->Popping(log, length);
  if (ngrams_) ngrams_->Popping(log, length);
  if (marked_) marked_->Popping(log, length);
}

std::unique_ptr<HistoryIndex> HistoryIndex::Fork(const TokenLog& log, uint32_t length) {
  std::unique_ptr<HistoryIndex> fork(new HistoryIndex());
  if (dry_) fork->dry_.emplace(dry_->Fork(log, length));
  if (ngrams_) fork->ngrams_.emplace(ngrams_->Fork(log, length));
  if (marked_) fork->marked_.emplace(marked_->Fork(log, length));
  return fork;
}

DryTermList HistoryIndex::DryTerms(const TokenLog& log, const HistoryOptions& options) const {
  return dry_ ? dry_->Terms(log, options.dry) : DryTermList();
}

ContextIndex::AllFound HistoryIndex::RepeatedNgrams(const TokenLog& log) const {
  ContextIndex::AllFound found;
  if (ngrams_) ngrams_->Find(log, &found);
  return found;
}

uint64_t HistoryIndex::bytes() const {
  return sizeof(*this) + (dry_ ? dry_->bytes() : 0) + (ngrams_ ? ngrams_->bytes() : 0) +
         (marked_ ? marked_->bytes() : 0);
}

}  // namespace sortition::service
