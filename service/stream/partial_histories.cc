// Joining of history pieces.
#include "service/stream/partial_histories.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/request/checks.h"

namespace sortition::service {

std::variant<std::unique_ptr<SequenceHistory>, Refusal> PartialHistories::Add(OpenRequest* request) {
  HistoryPiece& piece = *request->history;
  const std::string& id = request->request_id;
  const auto refuse = [&](Refusal refusal) {
    Drop(id);
    return refusal;
  };
  if (piece.offset == 0) {
    Drop(id);
    if (!piece.continues) return std::make_unique<SequenceHistory>(std::move(piece.history));
    if (auto refusal = CheckCount(partials_.size() + 1, limits_.stream_sequences, "open.history")) return *refusal;
    partials_[id] = {request->epoch, request->spec->live_vocabulary, {{}, piece.history.prompt_length}};
  }
  const auto it = partials_.find(id);
  const size_t have = it == partials_.end() ? 0 : it->second.history.tokens.size();
  if (it == partials_.end() || piece.offset != have || it->second.epoch != request->epoch) {
    return refuse({Reason::kContradiction, "open.history.offset", absl::StrCat(have),
                   "the piece does not follow the one before; start again at offset 0"});
  }
  Partial& partial = it->second;
  if (partial.live_vocabulary != request->spec->live_vocabulary) {
    return refuse({Reason::kContradiction, "open.live_vocabulary_size", absl::StrCat(partial.live_vocabulary),
                   "differs from that of the first piece of the history"});
  }
  if (auto refusal = CheckCount(tokens_ + piece.history.tokens.size(), limits_.max_history, "open.history.tokens")) {
    return refuse(*std::move(refusal));
  }
  std::vector<uint32_t>& tokens = partial.history.tokens;
  tokens.insert(tokens.end(), piece.history.tokens.begin(), piece.history.tokens.end());
  tokens_ += piece.history.tokens.size();
  if (piece.continues) return std::unique_ptr<SequenceHistory>();
  if (partial.history.prompt_length > tokens.size()) {
    return refuse({Reason::kOutOfRange, "open.history.prompt_length", absl::StrCat("<= ", tokens.size()),
                   "the prompt is longer than the history"});
  }
  tokens_ -= tokens.size();
  auto whole = std::make_unique<SequenceHistory>(std::move(partial.history));
  partials_.erase(it);
  return whole;
}

void PartialHistories::Drop(const std::string& request_id) {
  const auto it = partials_.find(request_id);
  if (it == partials_.end()) return;
  tokens_ -= it->second.history.tokens.size();
  partials_.erase(it);
}

}  // namespace sortition::service
