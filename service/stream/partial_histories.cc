// Joining of history pieces.
#include "service/stream/partial_histories.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/checks.h"

namespace sortition::service {
namespace {

// Memory of an entry besides the state that it holds.
constexpr uint64_t kEntryBytes = 128;

}  // namespace

PartialHistories::~PartialHistories() {
  for (auto& [id, partial] : partials_) memory_.Destroy(std::move(partial.builder), partial.bytes);
}

std::variant<std::unique_ptr<Text::Builder>, Refusal> PartialHistories::Add(const Ledger::Owner& owner,
                                                                            OpenRequest* request, bool rows_wait) {
  HistoryPiece& piece = *request->history;
  const std::string& id = request->request_id;
  const auto refuse = [&](Refusal refusal) {
    Drop(id);
    return refusal;
  };
  if (piece.offset == 0) {
    Drop(id);
    const uint64_t least =
        std::max({uint64_t{piece.known_length}, uint64_t{piece.prompt_length}, uint64_t{piece.tokens.size()}});
    if (auto refusal = ledger_.Admit(owner, least, piece.continues && piece.known_length == 0)) return *refusal;
    if (!piece.continues) {  // whole at once
      auto whole = std::make_unique<Text::Builder>(request->spec, piece.prompt_length, limits_.kept_history);
      whole->Add(piece.tokens);
      ledger_.SpendHistory(piece.tokens.size() * RewriteTimes(*request->spec), rows_wait);
      ledger_.Completed(piece.tokens.size());
      return whole;
    }
    const Bound most = Bounds(limits_).stream_sequences();
    if (auto refusal = CheckCount(partials_.size() + 1, most, "open.history")) return *refusal;
    partials_[id] = {request->epoch,
                     std::make_unique<Text::Builder>(request->spec, piece.prompt_length, limits_.kept_history),
                     request->rules};
  }
  const auto it = partials_.find(id);
  const uint32_t have = it == partials_.end() ? 0 : it->second.builder->length();
  if (it == partials_.end() || piece.offset != have || it->second.epoch != request->epoch) {
    return refuse({Reason::kContradiction, "open.history.offset", absl::StrCat(have),
                   "the piece does not follow the one before; start again at offset 0"});
  }
  Partial& partial = it->second;
  const SequenceSpec& first = partial.builder->spec();
  if (first.live_vocabulary != request->spec->live_vocabulary) {
    return refuse({Reason::kContradiction, "open.live_vocabulary_size", absl::StrCat(first.live_vocabulary),
                   "differs from that of the first piece of the history"});
  }
  if (first.history != request->spec->history || first.penalises() != request->spec->penalises()) {
    return refuse({Reason::kContradiction, "open.parameters", "",
                   "options that look at the history differ from those of its first piece"});
  }
  if (auto refusal = CheckCount(tokens_ + piece.tokens.size(), Bounds(limits_).max_history(), "open.history.tokens")) {
    return refuse(*std::move(refusal));
  }
  partial.builder->Add(piece.tokens);
  tokens_ += piece.tokens.size();
  const uint64_t bytes = partial.builder->bytes() + kEntryBytes + id.size();
  if (auto refusal = memory_.Resize(partial.bytes, bytes, "open.history")) return refuse(*std::move(refusal));
  partial.bytes = bytes;
  ledger_.SpendHistory(piece.tokens.size() * RewriteTimes(*request->spec), rows_wait);
  if (piece.continues) return std::unique_ptr<Text::Builder>();
  const uint32_t length = partial.builder->length();
  if (partial.builder->prompt_length() > length) {
    return refuse({Reason::kOutOfRange, "open.history.prompt_length", absl::StrCat("<= ", length),
                   "the prompt is longer than the history"});
  }
  auto whole = std::move(partial.builder);
  tokens_ -= length;
  memory_.Shrink(partial.bytes);
  partials_.erase(it);
  ledger_.Completed(length);
  return whole;
}

void PartialHistories::Skip(const std::string& request_id, uint64_t epoch) {
  Drop(request_id);
  if (request_id.size() > kMaxNameBytes) return;
  if (!skipped_.contains(request_id)) {
    if (skipped_.size() >= limits_.stream_sequences || memory_.Grow(kEntryBytes + request_id.size(), "open")) return;
  }
  skipped_[request_id] = epoch;
}

bool PartialHistories::Skips(const std::string& request_id, uint64_t epoch, uint32_t offset, bool continues) {
  const auto it = skipped_.find(request_id);
  if (it == skipped_.end()) return false;
  const bool skips = offset != 0 && it->second == epoch;
  if (!skips || !continues) {
    memory_.Shrink(kEntryBytes + request_id.size());
    skipped_.erase(it);
  }
  return skips;
}

std::optional<std::shared_ptr<const TenantPolicy>> PartialHistories::FindPolicy(const std::string& request_id,
                                                                                uint64_t epoch) const {
  const auto it = partials_.find(request_id);
  if (it == partials_.end() || it->second.epoch != epoch) return std::nullopt;
  return it->second.rules;
}

bool PartialHistories::Drop(const std::string& request_id, uint64_t epoch) {
  const auto it = partials_.find(request_id);
  if (it == partials_.end() || it->second.epoch > epoch) return false;
  tokens_ -= it->second.builder->length();
  memory_.Destroy(std::move(it->second.builder), it->second.bytes);
  partials_.erase(it);
  return true;
}

}  // namespace sortition::service
