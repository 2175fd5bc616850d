// Joining of snapshot pieces.
#include "service/stream/partial_snapshots.h"

#include <utility>

#include "service/request/checks.h"

namespace sortition::service {
namespace {

// Memory of an entry beside the bytes that it holds.
constexpr uint64_t kEntryBytes = 160;

}  // namespace

std::variant<std::optional<std::string>, Refusal> PartialSnapshots::Add(const v1::ImportSequence& piece) {
  const std::string& id = piece.open().request_id();
  if (const auto it = partials_.find(id); it != partials_.end() && it->second.epoch != piece.open().epoch()) Drop(id);
  if (!partials_.contains(id)) {
    const Bound most = Bounds(limits_).stream_sequences();
    if (auto refusal = CheckCount(partials_.size() + 1, most, "import_sequence")) return *refusal;
  }
  const Bound most = Bounds(limits_).max_message_bytes();
  if (auto refusal = CheckByteCount(bytes_ + piece.state().size(), most, "import_sequence.state")) {
    Drop(id);
    return *std::move(refusal);
  }
  Partial& partial = partials_[id];
  partial.epoch = piece.open().epoch();
  partial.bytes += piece.state();
  bytes_ += piece.state().size();
  const uint64_t held = kEntryBytes + id.size() + partial.bytes.capacity();
  if (auto refusal = memory_.Resize(partial.held, held, "import_sequence.state")) {
    Drop(id);
    return *std::move(refusal);
  }
  partial.held = held;
  if (piece.continues()) return std::nullopt;
  bytes_ -= partial.bytes.size();
  std::optional<std::string> whole = std::exchange(partial.bytes, "");
  Drop(id);
  return whole;
}

void PartialSnapshots::Skip(const v1::OpenSequence& open) {
  Drop(open.request_id());
  if (open.request_id().size() > kMaxNameBytes) return;
  const uint64_t held = kEntryBytes + open.request_id().size();
  if (partials_.size() >= limits_.stream_sequences || memory_.Grow(held, "import_sequence")) return;
  partials_[open.request_id()] = {open.epoch(), true, "", held};
}

bool PartialSnapshots::Skips(const v1::ImportSequence& piece) {
  const auto it = partials_.find(piece.open().request_id());
  if (it == partials_.end() || !it->second.skipped) return false;
  const bool skips = it->second.epoch == piece.open().epoch();
  if (!skips || !piece.continues()) Erase(it);
  return skips;
}

bool PartialSnapshots::Drop(const std::string& request_id, uint64_t epoch) {
  const auto it = partials_.find(request_id);
  if (it == partials_.end() || it->second.epoch > epoch) return false;
  const bool had_pieces = !it->second.skipped;
  Erase(it);
  return had_pieces;
}

void PartialSnapshots::Erase(Partials::iterator partial) {
  bytes_ -= partial->second.bytes.size();
  memory_.Shrink(partial->second.held);
  partials_.erase(partial);
}

}  // namespace sortition::service
