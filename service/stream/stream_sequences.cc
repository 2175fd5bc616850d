// Opening, forking and closing of sequences; taking of histories.
#include "service/stream/stream_sequences.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "service/checks.h"
#include "service/stream/device_needs.h"
#include "service/stream/opening.h"
#include "service/text/cost.h"
#include "service/wire/compile_parameters.h"
#include "service/wire/encode.h"
#include "service/wire/encode_result.h"
#include "service/wire/stream_request.h"

namespace sortition::service {
namespace {

// Bytes of an entry of the map of open sequences, twice, since the map grows by doubling.
constexpr uint64_t kEntryBytes = 256;

// Returns the memory that the stream holds for an open sequence: its options stay when its state is forgotten.
uint64_t BytesOf(const std::string& request_id, const RowSequence& sequence) {
  uint64_t bytes = kEntryBytes + request_id.size() + sequence.spec->bytes();
  if (sequence.key) {
    const SequenceKey& key = *sequence.key;
    bytes += sizeof(key) + key.tenant.size() + key.worker_session.size() + request_id.size();
  }
  return bytes;
}

}  // namespace

std::optional<Refusal> StreamSequences::OnOpen(Frame* frame) {
  v1::OpenSequence* const message = frame->message.mutable_open();
  const v1::OpenSequence& open = *message;
  const v1::History& piece = open.history();
  if (partial_histories_.Skips(open.request_id(), open.epoch(), piece.offset(), piece.continues())) return std::nullopt;
  if (auto refusal = account_.Charge(0, frame->bytes, "open")) return refusal;
  std::shared_ptr<const TenantPolicy> rules = FindPolicy(engine_, stream_->tenant);
  if (piece.offset() > 0) rules = partial_histories_.FindPolicy(open.request_id(), open.epoch()).value_or(rules);
  std::optional<v1::PolicyEffect> policy;
  if (auto refusal = TakePolicy(&engine_, rules.get(), "open", message->mutable_parameters(),
                                message->mutable_watermark_key_id(), &policy)) {
    return refusal;
  }
  if (auto refusal = ChargeOptions(open, "open")) return refusal;
  auto parsed = ParseOpen(open, engine_.limits(), "open", &engine_.entropy());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return std::move(*refusal);
  OpenRequest& request = std::get<OpenRequest>(parsed);
  request.policy = std::move(policy);
  request.rules = std::move(rules);
  if (auto refusal = Prepare(open, "open", &request)) return refusal;
  // The stream's memory takes account of tokens beyond one piece, which is taken before the next message.
  std::vector<uint32_t> tokens;
  if (request.history) tokens = std::move(request.history->tokens);
  const uint64_t held = tokens.size() > kPieceTokens ? tokens.capacity() * sizeof(tokens[0]) : 0;
  if (auto refusal = memory_.Grow(held, "open.history")) return refusal;
  Begin(std::move(request), *frame, open);
  v1::OpenSequence& named = *open_->message.mutable_open();
  named.set_request_id(open.request_id());
  named.set_epoch(open.epoch());
  named.mutable_history()->set_continues(piece.continues());
  open_->tokens = std::move(tokens);
  open_->continues = piece.continues();
  open_->bytes = held;
  return std::nullopt;
}

void StreamSequences::Begin(OpenRequest request, const Frame& frame, const v1::OpenSequence& open) {
  open_ = std::make_unique<OpenInPieces>();
  open_->request = std::move(request);
  // Receipts begin with the last message of a history.
  if (!open_->request.receipt_salt || open.history().continues()) return;
  open_->for_receipts = std::shared_ptr<const v1::SamplingParameters>(frame.memory, &open.parameters());
}

std::optional<Refusal> StreamSequences::ChargeOptions(const v1::OpenSequence& open, absl::string_view path) {
  const uint64_t cost = CompileCost(open.parameters());
  if (auto refusal = CheckCompileCost(cost, path)) return refusal;
  engine_.Spend(&account_, cost);
  // Receipts, the history's first piece and the copy that a fork makes are other pieces of work.
  if (cost > kPieceWork) stream_->pause = absl::Nanoseconds(cost);
  return std::nullopt;
}

std::optional<StreamSequences::Refused> StreamSequences::TakePiece() {
  OpenInPieces& open = *open_;
  if (open.for_receipts != nullptr && TakeReceipts()) return std::nullopt;
  auto refusal = open.message.has_fork() ? FinishFork()
                 : !open.request.history ? FinishOpen(nullptr)
                 : open.whole == nullptr ? TakeHistoryPiece()
                                         : FinishHistory();
  std::optional<Refused> refused;
  if (refusal) refused = {std::move(open.message), *std::move(refusal)};
  if (refused || (open.taken == open.tokens.size() && open.whole == nullptr)) {
    memory_.Shrink(open.bytes);
    open_.reset();
  }
  return refused;
}

bool StreamSequences::TakeReceipts() {
  const std::shared_ptr<const v1::SamplingParameters> parameters = std::move(open_->for_receipts);
  const uint64_t cost = price::kReceiptByte * parameters->ByteSizeLong();
  engine_.Spend(&account_, cost);
  open_->receipts = BeginReceipts(&engine_, *parameters, open_->request);
  if (cost > kPieceWork) stream_->pause = absl::Nanoseconds(cost);
  return cost > kPieceWork;
}

std::optional<Refusal> StreamSequences::TakeHistoryPiece() {
  OpenInPieces& open = *open_;
  OpenRequest& request = open.request;
  HistoryPiece& piece = *request.history;
  const size_t count = std::min(open.tokens.size() - open.taken, kPieceTokens);
  const auto first = open.tokens.begin() + static_cast<std::ptrdiff_t>(open.taken);
  if (open.taken > 0) piece.offset += static_cast<uint32_t>(piece.tokens.size());
  piece.tokens.assign(first, first + static_cast<std::ptrdiff_t>(count));
  open.taken += count;
  piece.continues = open.continues || open.taken < open.tokens.size();
  const uint64_t work = price::kRewrittenToken * RewriteTimes(*request.spec) * count;
  engine_.Spend(&account_, work);
  // The histories of one stream take less than half of a thread.
  if (piece.continues || count > Ledger::kShortHistory) stream_->pause = absl::Nanoseconds(work);
  auto added = partial_histories_.Add(owner(), &request, engine_.batcher().queued_rows() > 0);
  if (auto* refusal = std::get_if<Refusal>(&added)) return std::move(*refusal);
  auto history = std::move(std::get<std::unique_ptr<Text::Builder>>(added));
  if (history == nullptr) return std::nullopt;  // only the last piece is answered
  if (history->length() > history->prompt_length()) {
    engine_.observer().Count(Counter::kReplays, 1);
    engine_.observer().Count(Counter::kReplayedTokens, history->length());
  }
  open.whole = std::move(history);
  return FinishHistory();
}

std::optional<Refusal> StreamSequences::FinishHistory() {
  OpenInPieces& open = *open_;
  if (!open.whole->Prepare(*open.request.spec)) {
    memory_.Shrink(std::exchange(open.bytes, 0));  // the table takes account of the state
    return FinishOpen(std::exchange(open.whole, nullptr)->Finish(open.request.spec));
  }
  stream_->pause += absl::Nanoseconds(price::kFoundEdit * Text::Builder::kPieceEdits);
  const uint64_t bytes = open.tokens.capacity() * sizeof(open.tokens[0]) + open.whole->bytes();
  auto refusal = memory_.Resize(open.bytes, bytes, "open.history");
  if (!refusal) open.bytes = bytes;
  return refusal;
}

std::optional<Refusal> StreamSequences::FinishOpen(std::unique_ptr<Text> state) {
  const OpenRequest& request = open_->request;
  auto outcome = Open(std::move(state));
  if (auto* refusal = std::get_if<Refusal>(&outcome)) {
    if (refusal->reason == Reason::kHistoryRequired) {
      refusal->retry_after = engine_.ledger().Advice(owner(), 0);
      if (request.policy && !request.policy->watermark_key_id().empty()) {
        refusal->message = "the operator's policy marks the text, so its history is needed";
      }
    }
    return std::move(*refusal);
  }
  AnswerOpened(request, std::move(std::get<v1::OpenedState>(outcome)));
  return std::nullopt;
}

void StreamSequences::AnswerOpened(const OpenRequest& request, v1::OpenedState state) {
  v1::StreamResponse response;
  response.mutable_opened()->set_request_id(request.request_id);
  response.mutable_opened()->set_epoch(request.epoch);
  SendOpened(std::move(state), &response, response.mutable_opened()->mutable_state());
}

void StreamSequences::SendOpened(v1::OpenedState state, v1::StreamResponse* response, v1::OpenedState* part) {
  const std::string records = std::move(*state.mutable_receipts());
  size_t sent = 0;
  for (; records.size() - sent > kPartReceiptBytes; sent += kPartReceiptBytes) {
    part->set_receipts(records.substr(sent, kPartReceiptBytes));
    part->set_continues(true);
    stream_->Send(*response);
  }
  *part = std::move(state);
  part->set_receipts(records.substr(sent));
  stream_->Send(*response);
}

std::variant<v1::OpenedState, Refusal> StreamSequences::Open(std::unique_ptr<Text> state) {
  const OpenRequest& request = open_->request;
  if (!sequences_.contains(request.request_id)) {
    const Bound most = Bounds(engine_.limits()).stream_sequences();
    if (auto refusal = CheckCount(sequences_.size() + 1, most, "open")) {
      refusal->message = "close sequences that are done with";
      return *refusal;
    }
  }
  const std::string& id = request.request_id;
  RowSequence sequence{request.spec, {request.epoch, stream_->owner.stream}, nullptr, nullptr, &engine_.sequences()};
  v1::OpenedState opened;
  opened.set_seed(request.spec->seed);
  opened.set_stateful(request.spec->stateful());
  if (request.spec->stateful()) {
    sequence.key = std::make_shared<const SequenceKey>(SequenceKey{stream_->tenant, stream_->worker_session, id});
  }
  const uint64_t bytes = BytesOf(id, sequence);
  if (auto refusal = memory_.Grow(bytes, "open")) return *std::move(refusal);
  if (sequence.key) {
    auto result = engine_.sequences().Open(*sequence.key, sequence.owner, request.spec, std::move(state));
    if (auto* refusal = std::get_if<Refusal>(&result)) {
      memory_.Shrink(bytes);
      return std::move(*refusal);
    }
    SequenceTable::Opened& at = std::get<SequenceTable::Opened>(result);
    sequence.state = std::move(at.sequence);
    engine_.Spend(&account_, price::kFreedChunk * (at.replaced_bytes / 64));
    opened.set_position(at.at.position);
    opened.set_history_hash(at.at.history_hash);
    opened.set_last_step_id(at.at.last_step_id);
  }
  const auto before = sequences_.find(id);
  if (before != sequences_.end() && before->second.receipts != nullptr) before->second.receipts->End();
  Forget(before);
  if (request.receipt_salt) {
    sequence.receipts = open_->receipts;
    opened.set_receipt_salt(request.receipt_salt->data(), request.receipt_salt->size());
    opened.set_receipts(sequence.receipts->Opening());
  }
  if (request.policy) {
    v1::PolicyEffect& effect = *opened.mutable_policy();
    effect = *request.policy;
    if (sequence.key) effect.set_history_digest(request.spec->digest());
  }
  sequences_.emplace(id, std::move(sequence));
  engine_.observer().Count(Counter::kSequencesOpened, 1);
  engine_.event_log().SequenceOpened(
      {stream_->worker_session, request.model, request.spec->vocabulary, request.spec->stateful()});
  return opened;
}

std::optional<Refusal> StreamSequences::Prepare(const v1::OpenSequence& open, absl::string_view path,
                                                OpenRequest* request) {
  if (auto refusal = CheckMark(&engine_, open.parameters(), path, *request)) return refusal;
  if (auto refusal = PrepareReceipts(&engine_, path, request)) return refusal;
  const DeviceKeeper& devices = engine_.batcher().keeper();
  const SequenceSpec& spec = *request->spec;
  if (auto refusal = WhyNoDevice(devices, open.parameters(), open.has_receipts(), path, spec)) return refusal;
  const char* const width = open.has_live_vocabulary_size() ? ".live_vocabulary_size" : ".vocabulary_size";
  return WhyTooWide(devices, spec, absl::StrCat(path, width));
}

void StreamSequences::Forget(Sequences::iterator sequence) {
  if (sequence == sequences_.end()) return;
  memory_.Shrink(BytesOf(sequence->first, sequence->second));
  sequences_.erase(sequence);
}

const RowSequence* StreamSequences::Find(const std::string& request_id) const {
  const auto it = sequences_.find(request_id);
  return it == sequences_.end() ? nullptr : &it->second;
}

void StreamSequences::Skip(const v1::StreamRequest& message) {
  const v1::OpenSequence& open = message.open();
  if (open.history().continues()) partial_histories_.Skip(open.request_id(), open.epoch());
}

std::optional<Refusal> StreamSequences::OnFork(Frame* frame) {
  const v1::ForkSequence& fork = frame->message.fork();
  if (auto refusal = account_.Charge(0, frame->bytes, "fork")) return refusal;
  v1::OpenSequence& opens = *frame->message.mutable_fork()->mutable_child();
  const v1::OpenSequence& child = opens;
  std::optional<v1::PolicyEffect> policy;
  if (auto refusal = TakePolicy(&engine_, FindPolicy(engine_, stream_->tenant).get(), "fork.child",
                                opens.mutable_parameters(), opens.mutable_watermark_key_id(), &policy)) {
    return refusal;
  }
  if (auto refusal = ChargeOptions(child, "fork.child")) return refusal;
  auto parsed = ParseFork(fork, engine_.limits(), &engine_.entropy());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return std::move(*refusal);
  OpenRequest& request = std::get<OpenRequest>(parsed);
  request.policy = std::move(policy);
  if (auto refusal = Prepare(child, "fork.child", &request)) return refusal;
  if (auto refusal = CheckName(fork.parent_request_id(), "fork.parent_request_id")) return refusal;
  const RowSequence* const found = Find(fork.parent_request_id());
  if (found == nullptr) {
    return Refusal{Reason::kUnknownSequence, "fork.parent_request_id", "", "this stream has not opened the sequence"};
  }
  const RowSequence& parent = *found;
  if (child.request_id() == fork.parent_request_id()) {
    return Refusal{Reason::kContradiction, "fork.child.request_id", "", "is the parent's"};
  }
  if (request.spec->vocabulary != parent.spec->vocabulary ||
      request.spec->live_vocabulary != parent.spec->live_vocabulary) {
    return Refusal{Reason::kVocabularyMismatch, "fork.child.vocabulary_size",
                   absl::StrCat(parent.spec->vocabulary, ", ", parent.spec->live_vocabulary, " live"),
                   "the vocabulary is the parent's"};
  }
  if (request.spec->stateful() && parent.state == nullptr) {
    return Refusal{Reason::kHistoryRequired, "fork.parent_request_id", "", "the parent keeps no history"};
  }
  Begin(std::move(request), *frame, child);
  v1::ForkSequence& named = *open_->message.mutable_fork();
  named.set_parent_request_id(fork.parent_request_id());
  if (fork.has_position()) named.set_position(fork.position());
  named.mutable_child()->set_request_id(child.request_id());
  return std::nullopt;
}

std::optional<Refusal> StreamSequences::FinishFork() {
  const v1::ForkSequence& fork = open_->message.fork();
  const OpenRequest& request = open_->request;
  const RowSequence& parent = *Find(fork.parent_request_id());
  std::unique_ptr<Text> state;
  if (request.spec->stateful()) {
    std::optional<uint32_t> position;
    if (fork.has_position()) position = fork.position();
    Bill bill;
    auto forked = parent.state->Fork(parent.owner, request.spec, position, &bill);
    engine_.Spend(&account_, bill.spent());
    if (auto* refusal = std::get_if<Refusal>(&forked)) {
      refusal->field = absl::StrCat("fork.", refusal->field.empty() ? "parent_request_id" : refusal->field);
      return std::move(*refusal);
    }
    state = std::move(std::get<std::unique_ptr<Text>>(forked));
  }
  auto outcome = Open(std::move(state));
  if (auto* refusal = std::get_if<Refusal>(&outcome)) {
    absl::string_view below = refusal->field;
    if (absl::ConsumePrefix(&below, "open")) refusal->field = absl::StrCat("fork.child", below);
    return std::move(*refusal);
  }
  v1::StreamResponse response;
  response.mutable_forked()->set_request_id(request.request_id);
  SendOpened(std::move(std::get<v1::OpenedState>(outcome)), &response, response.mutable_forked()->mutable_state());
  return std::nullopt;
}

std::optional<Refusal> StreamSequences::OnClose(const v1::CloseSequence& close) {
  if (auto refusal = CheckClose(close)) return refusal;
  const std::string& id = close.request_id();
  const auto own = sequences_.find(id);
  const std::shared_ptr<ReceiptChain> receipts = own == sequences_.end() ? nullptr : own->second.receipts;
  uint64_t epoch = close.epoch();
  if (!close.has_epoch() && own != sequences_.end()) epoch = own->second.owner.epoch;
  bool was_known = false;
  if (close.has_shard_index()) was_known = engine_.shards().Close(stream_->worker(), id, close.shard_index());
  // The sequence of a row in shards is shard 0's.
  if (close.shard_index() == 0) {
    if (!close.has_epoch() && own == sequences_.end()) return MissingField("close.epoch");
    auto closed = Close(id, epoch);
    if (auto* refusal = std::get_if<Refusal>(&closed)) return std::move(*refusal);
    was_known |= std::get<bool>(closed);
  }
  v1::StreamResponse response;
  if (receipts != nullptr && Find(id) == nullptr) response.mutable_closed()->set_receipts(receipts->End());
  response.mutable_closed()->set_request_id(id);
  response.mutable_closed()->set_epoch(epoch);
  response.mutable_closed()->set_was_known(was_known);
  stream_->Send(response);
  return std::nullopt;
}

std::variant<bool, Refusal> StreamSequences::Close(const std::string& request_id, uint64_t epoch) {
  const bool had_history = partial_histories_.Drop(request_id, epoch);
  const auto own = sequences_.find(request_id);
  // A sequence without state has no owner, and its epoch does not matter.
  const bool is_stateless = own != sequences_.end() && !own->second.key;
  const bool closes_own = is_stateless || (own != sequences_.end() && own->second.owner.epoch <= epoch);
  auto closed = engine_.sequences().Close({stream_->tenant, stream_->worker_session, request_id}, epoch);
  const uint64_t* const state_bytes = std::get_if<uint64_t>(&closed);
  const bool closes_state = state_bytes != nullptr && *state_bytes > 0;
  if (closes_own || closes_state) {
    const uint64_t freed = closes_state ? *state_bytes : own->second.spec->bytes();
    engine_.Spend(&account_, price::kFreedChunk * (freed / 64 + 1));
  }
  if (closes_own) Forget(own);
  if (closes_own || closes_state) {
    const auto is_first = [&](const RowShard& shard) {
      return shard.message->shard().index == 0 && (closes_state || shard.message->stream() == stream_->owner.stream);
    };
    engine_.shards().Cancel(stream_->worker(), {&request_id, 1}, is_first,
                            {Reason::kStepCancelled, "", "", "the sequence was closed before all shards came"});
  }
  if (auto* refusal = std::get_if<Refusal>(&closed); refusal != nullptr && !is_stateless) {
    return std::move(*refusal);
  }
  return closes_own || closes_state || had_history;
}

}  // namespace sortition::service
