// Import of states that come from another server. A state that has its whole history is built again from it, in pieces
// as a history is. Of any other state only the end of the history is there, which the options look at.
#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/request/snapshot_request.h"
#include "service/request/stream_request.h"
#include "service/sequence/history_hash.h"
#include "service/stream/stream_sequences.h"

namespace sortition::service {
namespace {

// Upper bound on the cost of a state that is taken at once: some 100 ms.
constexpr uint64_t kMostAtOnce = 128 * 1024;
// Cost of a token that is indexed; that of another token is 1.
constexpr uint64_t kIndexed = 8;

Refusal NotOfThese() {
  return {Reason::kContradiction, "import_sequence.state", "", "is not the state of a sequence with these options"};
}

}  // namespace

std::optional<Refusal> StreamSequences::OnImport(v1::ImportSequence* import, uint64_t bytes) {
  const v1::ImportSequence& message = *import;
  if (partial_snapshots_.Skips(message)) return std::nullopt;
  if (auto refusal = account_.Charge(0, bytes, "import_sequence")) return refusal;
  std::optional<v1::PolicyEffect> policy;
  if (auto refusal = TakePolicy(Policy().get(), "import_sequence.open", import->mutable_open(), &policy))
    return refusal;
  auto parsed = ParseImport(message, engine_.limits(), &engine_.entropy());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return std::move(*refusal);
  OpenRequest& request = std::get<OpenRequest>(parsed);
  request.policy = std::move(policy);
  if (auto refusal = Prepare(message.open(), "import_sequence.open", &request)) return refusal;
  auto added = partial_snapshots_.Add(message);
  if (auto* refusal = std::get_if<Refusal>(&added)) return std::move(*refusal);
  const auto& whole = std::get<std::optional<std::string>>(added);
  if (!whole) return std::nullopt;  // only the last piece is answered
  auto snapshot = ParseSnapshot(*whole, engine_.limits(), "import_sequence.state");
  if (auto* refusal = std::get_if<Refusal>(&snapshot)) return std::move(*refusal);
  auto& whole_state = std::get<SequenceSnapshot>(snapshot);
  return whole_state.kept_from == 0 ? BeginImport(std::move(request), std::move(whole_state))
                                    : ImportAtOnce(request, whole_state);
}

std::optional<Refusal> StreamSequences::ImportAtOnce(const OpenRequest& request, const SequenceSnapshot& snapshot) {
  const uint64_t cost = snapshot.kept.size() * (HistoryIndex::Needed(request.spec->history) ? kIndexed : 1);
  if (cost > kMostAtOnce) {
    return Refusal{Reason::kHistoryRequired, "import_sequence.state.kept",
                   absl::StrCat("<= ", kMostAtOnce, " tokens, ", kMostAtOnce / kIndexed, " indexed ones"),
                   "a state that keeps so much of its history is built from the whole of it"};
  }
  return FinishImport(request, SequenceState::FromSnapshot(request.spec, snapshot, engine_.limits().kept_history));
}

std::optional<Refusal> StreamSequences::BeginImport(OpenRequest request, SequenceSnapshot snapshot) {
  if (snapshot.prompt_length > snapshot.kept.size() || snapshot.hash_before != kEmptyHash) return NotOfThese();
  const uint64_t bytes = (snapshot.kept.capacity() + 3 * snapshot.tokens.capacity()) * sizeof(uint32_t);
  if (auto refusal = memory_.Grow(bytes, "import_sequence.state")) return refusal;
  auto builder =
      std::make_unique<SequenceState::Builder>(request.spec, snapshot.prompt_length, engine_.limits().kept_history);
  import_ = std::make_unique<ImportInPieces>(
      ImportInPieces{std::move(request), std::move(snapshot), std::move(builder), 0, bytes, 0});
  return std::nullopt;
}

std::optional<Refusal> StreamSequences::TakeStatePiece() {
  ImportInPieces& import = *import_;
  const SequenceSpec& spec = *import.request.spec;
  const std::vector<uint32_t>& kept = import.snapshot.kept;
  const size_t count = std::min(kept.size() - import.taken, kPieceTokens);
  const std::span<const uint32_t> piece(kept.data() + import.taken, count);
  if (std::ranges::any_of(piece, [&](uint32_t token) { return token >= spec.live_vocabulary; })) return NotOfThese();
  import.builder->Add(piece);
  import.taken += count;
  const uint64_t bytes = import.builder->bytes();
  if (auto refusal = memory_.Resize(import.builder_bytes, bytes, "import_sequence.state")) return refusal;
  import.builder_bytes = bytes;
  if (import.taken < kept.size()) {
    pause_ = PauseAfterPiece(spec);
    return std::nullopt;
  }
  // The table accounts for the state from now on.
  memory_.Shrink(std::exchange(import.builder_bytes, 0));
  auto state = import.builder->Finish(import.request.spec);
  const SequenceSnapshot built = state->Snapshot();
  const auto content = [](const SequenceSnapshot& snapshot) {
    return std::tie(snapshot.history_hash, snapshot.tokens, snapshot.in_history, snapshot.in_output);
  };
  if (content(built) != content(import.snapshot)) state.reset();
  return FinishImport(import.request, std::move(state));
}

std::optional<Refusal> StreamSequences::FinishImport(const OpenRequest& request, std::unique_ptr<SequenceState> state) {
  if (state == nullptr) return NotOfThese();
  auto outcome = Open(request, std::move(state));
  if (auto* refusal = std::get_if<Refusal>(&outcome)) return Within("import_sequence.open", std::move(*refusal));
  AnswerOpened(request, std::move(std::get<v1::OpenedState>(outcome)));
  return std::nullopt;
}

void StreamSequences::EndImport() {
  memory_.Shrink(import_->bytes + import_->builder_bytes);
  import_.reset();
}

}  // namespace sortition::service
