// Reads SequenceSnapshot.
#include "service/request/snapshot_request.h"

#include "absl/strings/str_cat.h"
#include "service/request/checks.h"
#include "service/request/strictness.h"
#include "service/request/wire_scan.h"
#include "sortition/v1/sequence_snapshot.pb.h"

namespace sortition::service {

std::variant<SequenceSnapshot, Refusal> ParseSnapshot(const std::string& bytes, const Limits& limits,
                                                      absl::string_view path) {
  v1::SequenceSnapshot message;
  if (!HasAtMostParts({bytes.data(), bytes.size()}, *message.GetDescriptor(), kMaxMessageParts)) {
    return Refusal{Reason::kTooMany, std::string(path), Bounds::max_message_parts().Text(),
                   "has more fields that no snapshot has"};
  }
  if (!message.ParseFromString(bytes)) {
    return Refusal{Reason::kMalformedMessage, std::string(path), "", "not a sortition.v1.SequenceSnapshot"};
  }
  if (auto refusal = FindUnknown(message, path)) return *std::move(refusal);
  const auto field = [&](absl::string_view name) { return absl::StrCat(path, ".", name); };
  const uint64_t length = uint64_t{message.kept_from()} + static_cast<uint64_t>(message.kept_size());
  const std::optional<Refusal> checks[] = {
      CheckRange<uint32_t>(message.format(), kSnapshotFormat, kSnapshotFormat, field("format")),
      CheckCount(length, Bounds(limits).max_history(), field("kept")),
  };
  for (const std::optional<Refusal>& refusal : checks) {
    if (refusal) return *refusal;
  }
  SequenceSnapshot snapshot;
  snapshot.prompt_length = message.prompt_length();
  snapshot.history_hash = message.history_hash();
  snapshot.kept_from = message.kept_from();
  snapshot.hash_before = message.chain_before();
  snapshot.kept.assign(message.kept().begin(), message.kept().end());
  snapshot.tokens.assign(message.tokens().begin(), message.tokens().end());
  snapshot.in_history.assign(message.in_history().begin(), message.in_history().end());
  snapshot.in_output.assign(message.in_output().begin(), message.in_output().end());
  snapshot.phase = message.phase();
  snapshot.phase_from = message.phase_from();
  return snapshot;
}

}  // namespace sortition::service
