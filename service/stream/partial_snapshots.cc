// Joining of snapshot pieces.
#include "service/stream/partial_snapshots.h"

#include <utility>

#include "service/request/checks.h"

namespace sortition::service {

std::variant<std::optional<std::string>, Refusal> PartialSnapshots::Add(const v1::ImportSequence& piece) {
  const std::string& id = piece.open().request_id();
  if (const auto it = partials_.find(id); it != partials_.end() && it->second.epoch != piece.open().epoch()) Drop(id);
  if (!partials_.contains(id)) {
    if (auto refusal = CheckCount(partials_.size() + 1, limits_.stream_sequences, "import_sequence")) return *refusal;
  }
  if (auto refusal =
          CheckByteCount(bytes_ + piece.state().size(), limits_.max_message_bytes, "import_sequence.state")) {
    Drop(id);
    return *std::move(refusal);
  }
  Partial& partial = partials_[id];
  partial.epoch = piece.open().epoch();
  partial.bytes += piece.state();
  bytes_ += piece.state().size();
  if (piece.continues()) return std::nullopt;
  std::optional<std::string> whole = std::move(partial.bytes);
  bytes_ -= whole->size();
  partials_.erase(id);
  return whole;
}

void PartialSnapshots::Skip(const v1::OpenSequence& open) {
  Drop(open.request_id());
  if (open.request_id().size() > kMaxNameBytes) return;
  if (partials_.size() < limits_.stream_sequences) partials_[open.request_id()] = {open.epoch(), true, ""};
}

bool PartialSnapshots::Skips(const v1::ImportSequence& piece) {
  const auto it = partials_.find(piece.open().request_id());
  if (it == partials_.end() || !it->second.skipped) return false;
  const bool skips = it->second.epoch == piece.open().epoch();
  if (!skips || !piece.continues()) partials_.erase(it);
  return skips;
}

void PartialSnapshots::Drop(const std::string& request_id) {
  const auto it = partials_.find(request_id);
  if (it == partials_.end()) return;
  bytes_ -= it->second.bytes.size();
  partials_.erase(it);
}

}  // namespace sortition::service
