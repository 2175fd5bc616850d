// Builds each message from the scenario's options.
#include "tests/costs/messages.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/law/compact.h"
#include "kernels/law/version.h"
#include "service/limits.h"
#include "tests/costs/wire_forms.h"
#include "tests/support/compact_step.h"
#include "tests/support/messages.h"
#include "tests/support/plain_parameters.h"
#include "tests/support/plain_sequence.h"

namespace sortition::costs {
namespace {

constexpr uint64_t kMostTensorBytes = 12u << 20;
constexpr uint64_t kMostKernelTokens = 1u << 23;  // of all rows
constexpr uint32_t kMostSummed = 1u << 16;        // tokens of a row whose sums are stated
constexpr uint32_t kMostFirst = 4096;             // tokens that one compact row lists
constexpr uint64_t kPairBytes = 8;                // of one of them
constexpr uint64_t kMostShardRows = 1u << 14;     // of all shards of a step
constexpr uint64_t kMostShardTokens = 1u << 21;   // that they list
constexpr uint64_t kPairsOffset = 8;
constexpr uint64_t kRegionOffset = 4096;  // of logits
constexpr uint64_t kReadyOffset = 4;

void SetInline(std::string bytes, Request* request, v1::TensorSource* source) {
  source->mutable_inline_()->set_payload(static_cast<uint32_t>(request->payloads_size()));
  request->add_payloads(std::move(bytes));
}

std::string LogitBytes(uint64_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto word = static_cast<uint32_t>(i * 2654435761u);
    values[i] = static_cast<float>(word >> 16) / 6553.6f;
  }
  return testing::F32Bytes(values);
}

// Adds `count` tokens from 0 on, again and again below `live`.
void AddTokens(uint64_t count, uint32_t live, google::protobuf::RepeatedField<uint32_t>* tokens) {
  tokens->Reserve(static_cast<int>(count));
  for (uint64_t i = 0; i < count; ++i) tokens->Add(static_cast<uint32_t>(i % live));
}

// Clears what only shard 0 may set.
void ClearFirst(v1::StepRow* row) {
  row->clear_mask();
  row->clear_truncate_to();
  row->clear_append_tokens();
  row->clear_checkpoint();
}
template <typename Verify>
void ClearFirst(Verify* verify) {
  verify->clear_draft_row();
  verify->clear_masks();
}
// Clears what other shards may leave out.
template <typename Verify>
void ClearRepeated(Verify* verify) {
  verify->clear_sparse_probabilities();
  verify->clear_return_probabilities();
}

}  // namespace

Messages::Messages(const Scenario& scenario) : scenario_(scenario) {
  SetShape();
  FillParameters(scenario, live_, &parameters_);
}

uint32_t Messages::Size(std::string_view name, uint64_t most) const {
  return static_cast<uint32_t>(std::min(scenario_.Size(name), std::max<uint64_t>(most, 1)));
}

void Messages::SetShape() {
  const bool scores = scenario_.task() == Kind::kScore;
  vocabulary_ = Size("vocabulary", (1 << 20) - 1);
  drafts_ = Size("drafts", std::min<uint64_t>(service::kMaxDraftTokens, vocabulary_));
  positions_ = scores ? Size("scored", service::kMaxScoreTokens) : scenario_.verifies() ? drafts_ + 1 : 1;
  rows_ = has_rows() ? Size("rows", service::Limits().max_step_positions / positions_) : 1;
  if (!scenario_.is_compact()) {
    const uint64_t tensor_rows = scenario_.kind == Kind::kSample ? rows_ : positions_;
    const uint64_t tensors = Has("draft_row") ? 2 : 1;
    vocabulary_ =
        static_cast<uint32_t>(std::min({uint64_t{vocabulary_}, kMostTensorBytes / sizeof(float) / tensor_rows / tensors,
                                        std::max<uint64_t>(kMostKernelTokens / rows_ / positions_, 64)}));
  }
  if (scenario_.is_sharded()) SetShards();
  live_ = Has("live_vocabulary_size") ? vocabulary_ - vocabulary_ / 3 : vocabulary_;
  drafts_ = std::min(drafts_, live_);
  if (scenario_.verifies()) positions_ = drafts_ + 1;
}

void Messages::SetShards() {
  vocabulary_ = std::max(vocabulary_, 2u);
  uint64_t listed = 4;  // by a position in every shard
  if (scenario_.task() == Kind::kScore && Has("requested")) listed += Size("requested", 1000);
  if (scenario_.verifies() && Has("sparse_probabilities") && Has("shard.repeats")) listed += scenario_.Size("sparse");
  const uint64_t most =
      std::min({uint64_t{vocabulary_}, kMostShardRows / rows_, kMostShardTokens / (listed * rows_ * positions_)});
  shards_ = std::max(Size("shards", most), 2u);
}

uint32_t Messages::MostListed() const {
  const uint64_t of_step = service::Limits().max_compact_bytes / kPairBytes;
  return static_cast<uint32_t>(std::min<uint64_t>(kMostFirst, of_step / (uint64_t{rows_} * positions_)));
}

Messages::Part Messages::PartOf(uint32_t shard) const {
  const auto begin = [&](uint64_t index) { return static_cast<uint32_t>(vocabulary_ * index / shards_); };
  return {begin(shard), begin(shard + 1)};
}

Request Messages::Hello() const {
  Request hello = testing::Hello("worker");
  if (Has("client")) hello.mutable_hello()->set_client(std::string(128, 'c'));
  if (Word("unknown") % 2 == 0) testing::IgnoreUnknownFields(hello.mutable_hello());
  return hello;
}

v1::OpenSequence Messages::Opening(const std::string& id, uint64_t epoch, bool has_history) const {
  v1::OpenSequence open = testing::MakeOpen(id, epoch, vocabulary_);
  *open.mutable_parameters() = parameters_;
  if (Has("live_vocabulary_size")) open.set_live_vocabulary_size(live_);
  if (Has("choice_index")) open.set_choice_index(static_cast<uint32_t>(Word("choice") % 65536));
  if (Has("model")) open.set_model(std::string(128, 'm'));
  if (Has("receipts")) open.mutable_receipts()->set_salt(std::string(16, 's'));
  if (!scenario_.is_stateful() || !has_history) return open;
  const uint64_t length = scenario_.Size("history");
  AddTokens(length, Size("distinct", live_), open.mutable_history()->mutable_tokens());
  open.mutable_history()->set_prompt_length(static_cast<uint32_t>(length / 2));
  return open;
}

Request Messages::Open(const std::string& id, uint64_t epoch, bool has_history) const {
  return testing::Message(Opening(id, epoch, has_history));
}

Request Messages::Fork(const std::string& id) const {
  Request request;
  v1::ForkSequence& fork = *request.mutable_fork();
  fork.set_parent_request_id("s0");
  *fork.mutable_child() = Opening(id, 1, false);
  if (scenario_.kind != Kind::kFork) return request;
  if (Has("fork.without_options")) {
    Scenario other = scenario_;
    ++other.seed;
    fork.mutable_child()->clear_parameters();
    FillParameters(other, live_, fork.mutable_child()->mutable_parameters());
  }
  if (Has("fork.position")) fork.set_position(static_cast<uint32_t>(scenario_.Size("history") / 2));
  return request;
}

void Messages::NotePlace(const v1::OpenedState& state) {
  position_ = state.position();
  hash_ = state.history_hash();
}

void Messages::NoteDrawn(const v1::StepResults& results) {
  checkpoints_.resize(rows_);
  for (const v1::RowResult& row : results.rows()) {
    checkpoints_.at(row.row()) = row.draw().checkpoint();
    hash_ = row.draw().history_hash();
  }
  if (scenario_.is_stateful()) ++position_;
  ++step_id_;
}

Request Messages::Step(uint64_t batch_id, bool is_plain) { return MakeStep(batch_id, is_plain, {0, vocabulary_}); }

Request Messages::MakeStep(uint64_t batch_id, bool is_plain, Part part) {
  Request request;
  v1::Step& step = *request.mutable_step();
  step.set_batch_id(batch_id);
  v1::StepRow row;
  row.set_step_id(step_id_);
  row.set_position(position_);
  if (scenario_.is_stateful()) row.set_history_hash(hash_);
  AddPart(part, is_plain, &request, &row);
  if (!is_plain) FillRow(&row, &request);
  for (uint32_t i = 0; i < rows_; ++i) {
    v1::StepRow& own = *step.add_rows();
    own = row;
    own.set_request_id(absl::StrCat("s", i));
    if (!checkpoints_.empty()) own.set_checkpoint(checkpoints_[i]);
  }
  if (is_plain) return request;
  if (Has("timeout")) step.mutable_timeout()->set_seconds(5);
  if (Has("priority")) step.set_priority(static_cast<int32_t>(Word("priority") % 201) - 100);
  if (Has("trace")) {
    step.mutable_trace()->set_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    step.mutable_trace()->set_tracestate(std::string(512, 't'));
  }
  if (Has("answer_early")) step.set_answer_early(true);
  ChangeForm(scenario_, &step);
  return request;
}

void Messages::AddPart(Part part, bool is_plain, Request* request, v1::StepRow* row) {
  v1::LogitsTensor& logits = *request->mutable_step()->mutable_logits();
  logits.set_dtype(v1::DTYPE_F32);
  logits.set_vocabulary_size(part.end - part.begin);
  // All rows share their tensor rows.
  if (scenario_.is_compact() && !is_plain) {
    const v1::CompactRow compact = AddPairs(part, request);
    for (uint32_t i = 0; i < positions_; ++i) *row->add_compact() = compact;
  } else {
    AddLogits(part, is_plain ? 1 : positions_, is_plain, request);
    row->set_tensor_row(0);
  }
}

void Messages::AddLogits(Part part, uint32_t positions, bool is_plain, Request* request) {
  v1::LogitsTensor& logits = *request->mutable_step()->mutable_logits();
  const uint32_t stride = part.end - part.begin + (Has("row_stride_bytes") ? 8 : 0);
  if (Has("row_stride_bytes")) logits.set_row_stride_bytes(stride * 4);
  // Absent, the tensor has what all rows take.
  logits.set_tensor_rows(positions);
  std::string bytes = LogitBytes(uint64_t{stride} * positions);
  if (!Has("region") || connection_ == nullptr || is_plain) {
    return SetInline(std::move(bytes), request, logits.mutable_source());
  }
  // Shards share their bytes.
  const uint64_t most_bytes = (uint64_t{vocabulary_} + 8) * positions * sizeof(float);
  if (!region_) region_.emplace(connection_.get(), kRegionOffset + most_bytes);
  region_->Write(kRegionOffset, bytes);
  testing::SetRegion(region_->id, kRegionOffset, bytes.size(), logits.mutable_source());
  if (!Has("ready") || scenario_.is_sharded()) return;
  const uint32_t value = 1;
  region_->Write(kReadyOffset, {reinterpret_cast<const char*>(&value), sizeof(value)});
  logits.mutable_ready()->set_region_id(region_->id);
  logits.mutable_ready()->set_offset(kReadyOffset);
  logits.mutable_ready()->set_value(value);
}

v1::CompactRow Messages::AddPairs(Part part, Request* request) const {
  // Lower ids have higher logits.
  const auto logit_of = [&](uint32_t token) {
    return 10.0f - 20.0f * static_cast<float>(token) / static_cast<float>(live_);
  };
  const uint32_t live = std::max(std::min(part.end, live_), part.begin) - part.begin;
  const uint32_t most = MostListed();
  const bool is_whole = live == 0 || (Has("compact.is_whole") && live <= most);
  const uint32_t first = is_whole ? live : Size("compact.first", std::min(live, most));
  const uint32_t others = first >= most ? 0 : std::min(live - first, Size("compact.others", most - first));
  kernels::StatedRow row;
  for (uint32_t i = 0; i < first + others; ++i) {
    const uint32_t token = part.begin + i;
    (i < first ? row.first : row.others).push_back({token, std::bit_cast<uint32_t>(logit_of(token))});
  }
  row.is_whole = is_whole;
  // A shard states no sums.
  if ((Has("compact.unit_sum") || Has("compact.sum")) && live_ <= kMostSummed && !scenario_.is_sharded()) {
    std::vector<float> values(live_);
    for (uint32_t token = 0; token < live_; ++token) values[token] = logit_of(token);
    const kernels::RowParameters parameters = testing::PlainRowParameters(parameters_);
    kernels::RowRequest whole;
    whole.logits = values.data();
    whole.live_vocabulary = live_;
    whole.parameters = &parameters;
    const auto stated = law::StateRowReference(whole, 1, {});
    if (stated && Has("compact.unit_sum")) row.unit_sum = stated->unit_sum;
    if (stated && Has("compact.sum")) row.sum = stated->sum;
  }
  std::string pairs(kPairsOffset, '\0');
  v1::CompactRow compact;
  testing::AppendCompact(row, kernels::DType::kF32, &pairs, &compact);
  SetInline(std::move(pairs), request, request->mutable_step()->mutable_logits()->mutable_pairs());
  return compact;
}

v1::RowMask Messages::Mask() const {
  v1::RowMask mask;
  if (Has("mask.banned_tokens")) {
    const uint32_t count = Size("banned", live_ / 2);
    for (uint32_t i = 0; i < count && live_ > 1; ++i) mask.add_banned_tokens(live_ - 1 - i);
  }
  if (Has("mask.mask_row")) {
    mask.set_mask_row(0);
  } else if (Has("mask.uploaded_mask_id")) {
    mask.set_uploaded_mask_id(1);
  } else if (Has("mask.allowed_tokens")) {
    AddTokens(Size("allowed", live_), live_, mask.mutable_allowed_tokens()->mutable_tokens());
  }
  return mask;
}

Request Messages::Upload() const {
  Request request;
  v1::UploadMask& upload = *request.mutable_upload_mask();
  upload.set_mask_id(1);
  upload.set_vocabulary_size(vocabulary_);
  upload.mutable_mask()->set_rows(1);
  SetInline(MaskBytes(), &request, upload.mutable_mask()->mutable_source());
  return request;
}

Request Messages::Attach(std::shared_ptr<service::MemoryConnection> connection) {
  connection_ = std::move(connection);
  return testing::Attach(*connection_);
}

void Messages::FillRow(v1::StepRow* row, Request* request) const {
  if (Has("draw_salt")) row->set_draw_salt(static_cast<uint32_t>(Word("salt") % 65536));
  if (scenario_.is_stateful() && (Has("truncate_to") || Has("append_tokens"))) Rewrite(row);
  const v1::RowMask mask = Mask();
  if (mask.ByteSizeLong() > 0 && !(Has("masks") && scenario_.verifies())) *row->mutable_mask() = mask;
  if (mask.has_mask_row()) {
    v1::MaskTensor& tensor = *request->mutable_step()->mutable_masks();
    tensor.set_rows(1);
    SetInline(MaskBytes(), request, tensor.mutable_source());
  }
  if (scenario_.task() == Kind::kScore) return FillScore(row->mutable_score());
  if (scenario_.task() == Kind::kVerifyDraft) return FillVerify(mask, row->mutable_verify_draft(), request);
  if (scenario_.task() != Kind::kVerifyTree) return static_cast<void>(row->mutable_draw());
  v1::VerifyTree& tree = *row->mutable_verify_tree();
  FillVerify(mask, &tree, request);
  for (uint32_t i = 0; i < drafts_; ++i) tree.add_parents(ParentOf(i));
  if (has_probabilities()) {
    tree.set_draft_sampling(Word("sampling") % 2 == 0 ? v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT
                                                      : v1::DRAFT_SAMPLING_WITH_REPLACEMENT);
  }
}

void Messages::Rewrite(v1::StepRow* row) const {
  testing::PlainSequence plain(Opening("s0", 1, true));
  if (Has("truncate_to")) {
    plain.TruncateTo(plain.position() - std::min(plain.position(), Size("truncate", 16384)));
    row->set_truncate_to(plain.position());
  }
  if (Has("append_tokens")) AddTokens(Size("append", 16384), live_, row->mutable_append_tokens());
  for (const uint32_t token : row->append_tokens()) plain.Append(token);
  row->set_position(plain.position());
  row->set_history_hash(plain.hash());
}

void Messages::FillScore(v1::Score* score) const {
  if (Has("race")) score->set_race(true);
  AddTokens(positions_, live_, score->mutable_tokens());
  for (uint32_t i = 0; i < positions_ && Has("requested"); ++i) {
    AddTokens(Size("requested", std::min(live_, 1000u)), live_, score->add_requested()->mutable_tokens());
  }
}

template <typename Verify>
void Messages::FillVerify(const v1::RowMask& mask, Verify* verify, Request* request) const {
  const bool is_greedy = parameters_.has_temperature() && parameters_.temperature() == 0;
  const uint64_t word = Word("mode");
  v1::VerifyMode mode = is_greedy                              ? v1::VERIFY_MODE_GREEDY
                        : has_probabilities() || word % 2 == 0 ? v1::VERIFY_MODE_REJECTION
                                                               : v1::VERIFY_MODE_COUPLED;
  if (scenario_.task() == Kind::kVerifyDraft && has_probabilities() && word % 4 == 0) mode = v1::VERIFY_MODE_BLOCK;
  verify->set_mode(mode);
  if (Has("return_probabilities")) verify->set_return_probabilities(true);
  AddTokens(drafts_, live_, verify->mutable_draft_tokens());
  for (uint32_t i = 0; i < positions_ && Has("masks"); ++i) *verify->add_masks() = mask;
  const uint32_t distributions = CountDistributions();
  if (Has("draft_row")) {
    verify->set_draft_row(0);
    v1::DraftTensor& tensor = *request->mutable_step()->mutable_draft_probabilities();
    tensor.set_dtype(v1::DTYPE_F32);
    tensor.set_rows(distributions);
    std::vector<float> row(vocabulary_);
    std::fill_n(row.begin(), live_, 1.0f / static_cast<float>(live_));
    std::string bytes;
    for (uint32_t i = 0; i < distributions; ++i) bytes += testing::F32Bytes(row);
    SetInline(std::move(bytes), request, tensor.mutable_source());
  } else if (Has("sparse_probabilities")) {
    const uint32_t count = std::max(Size("sparse", live_), drafts_);
    for (uint32_t i = 0; i < distributions; ++i) {
      v1::SparseProbabilities& sparse = *verify->add_sparse_probabilities();
      AddTokens(count, live_, sparse.mutable_tokens());
      sparse.mutable_probabilities()->Resize(static_cast<int>(count), 1.0f / static_cast<float>(count));
    }
  }
}

// A chain, a star or a binary tree.
int32_t Messages::ParentOf(uint32_t draft) const {
  const uint64_t shape = Word("tree") % 3;
  if (shape == 0) return static_cast<int32_t>(draft) - 1;
  return shape == 1 || draft == 0 ? -1 : static_cast<int32_t>((draft - 1) / 2);
}

uint32_t Messages::CountDistributions() const {
  if (scenario_.task() == Kind::kVerifyDraft) return drafts_;
  std::set<int32_t> parents;
  for (uint32_t i = 0; i < drafts_; ++i) parents.insert(ParentOf(i));
  return static_cast<uint32_t>(parents.size());
}

Request Messages::Shard(uint64_t batch_id) {
  Request request = MakeStep(batch_id, false, PartOf(0));
  SetShard(0, request.mutable_step()->mutable_logits());
  return request;
}

Request Messages::OtherShard(uint64_t batch_id, uint32_t index, const Request& first) {
  Request request;
  v1::Step& step = *request.mutable_step();
  step = first.step();
  step.set_batch_id(batch_id);
  step.clear_logits();
  step.clear_masks();
  step.clear_draft_probabilities();
  if (!Has("shard.repeats")) step.clear_priority();
  v1::StepRow part;
  AddPart(PartOf(index), false, &request, &part);
  SetShard(index, step.mutable_logits());
  for (v1::StepRow& row : *step.mutable_rows()) {
    *row.mutable_compact() = part.compact();
    ClearFirst(&row);
    if (row.has_verify_draft()) ClearFirst(row.mutable_verify_draft());
    if (row.has_verify_tree()) ClearFirst(row.mutable_verify_tree());
    if (Has("shard.repeats")) continue;
    row.clear_history_hash();
    if (row.has_verify_draft()) ClearRepeated(row.mutable_verify_draft());
    if (row.has_verify_tree()) ClearRepeated(row.mutable_verify_tree());
  }
  return request;
}

void Messages::SetShard(uint32_t index, v1::LogitsTensor* logits) const {
  v1::VocabularyShard& shard = *logits->mutable_shard();
  shard.set_index(index);
  shard.set_count(shards_);
  shard.set_first_token(PartOf(index).begin);
  shard.set_total_vocabulary_size(vocabulary_);
  if (Has("shard.epoch")) shard.set_epoch(1);
}

v1::SampleRequest Messages::Sample() const {
  v1::SampleRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.set_vocabulary_size(vocabulary_);
  if (Has("live_vocabulary_size")) request.set_live_vocabulary_size(live_);
  if (Word("law") % 2 == 0) request.set_law_version(law::kLawVersion);
  request.set_logits(LogitBytes(uint64_t{vocabulary_} * rows_));
  v1::SampleRow row;
  *row.mutable_parameters() = parameters_;
  if (Word("seed") % 2 == 0) row.set_seed(Word("seed"));
  row.set_position(static_cast<uint32_t>(Word("position") % 1000));
  if (Has("choice_index")) row.set_choice_index(static_cast<uint32_t>(Word("choice") % 65536));
  if (Has("draw_salt")) row.set_draw_salt(static_cast<uint32_t>(Word("salt") % 65536));
  for (uint32_t i = 0; i < rows_; ++i) *request.add_rows() = row;
  return request;
}

Request Messages::Close() const {
  Request close = testing::MakeClose("s0", 1);
  if (!Has("close.epoch")) close.mutable_close()->clear_epoch();
  if (Has("shard.epoch")) close.mutable_close()->set_shard_index(0);
  return close;
}

Request Messages::Brought(uint64_t batch_id, uint32_t index, uint32_t rows) const {
  testing::StepBuilder builder(batch_id, 1);
  for (uint32_t row = 0; row < rows; ++row) {
    builder.AddRow(absl::StrCat("s", row), 1, 1, std::string(sizeof(float), 0));
  }
  Request request = builder.Build();
  v1::VocabularyShard& shard = *request.mutable_step()->mutable_logits()->mutable_shard();
  shard.set_index(index);
  shard.set_count(service::kMaxShards);
  shard.set_first_token(index);
  shard.set_total_vocabulary_size(service::kMaxShards);
  shard.set_epoch(1);
  return request;
}

uint32_t Messages::brought() const {
  constexpr uint64_t kMostTokens = 8 << 20;  // of all of them
  const uint64_t most = std::max<uint64_t>(kMostTokens / Size("banned", 65536), 1);
  return static_cast<uint32_t>(std::min<uint64_t>({scenario_.Size("shards"), most, service::kMaxShards - 1}));
}

Request Messages::BringAnswer(uint32_t row) const {
  Request request;
  v1::BringAnswer& bring = *request.mutable_bring_answer();
  bring.mutable_asked()->set_request_id(absl::StrCat("s", row));
  bring.mutable_asked()->set_step_id(1);
  bring.mutable_asked()->set_position(1);
  bring.mutable_result()->set_step_id(1);
  v1::DrawResult& draw = *bring.mutable_result()->mutable_draw();
  draw.set_token(1);
  const uint32_t count = Size("banned", 65536);
  AddTokens(count, count, draw.mutable_kept_tokens());
  return request;
}

}  // namespace sortition::costs
