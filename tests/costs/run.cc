// Builds a scenario's messages, sends them, and measures the last one.
#include "tests/costs/run.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/descriptor.h"
#include "kernels/check.h"
#include "kernels/law/compact.h"
#include "service/receipt/receipt_book.h"
#include "service/stream/session.h"
#include "service/wire/frame.h"
#include "tests/costs/heap.h"
#include "tests/support/messages.h"
#include "tests/support/plain_parameters.h"
#include "tests/support/plain_sequence.h"
#include "tests/support/receipt_folder.h"
#include "tests/support/test_engine.h"

namespace sortition::costs {
namespace {

// Prices of what the ledger leaves to the limits on bytes, in nanoseconds.
constexpr uint64_t kByte = 10;
constexpr uint64_t kPayloadByte = 1;

constexpr uint64_t kMostTensorBytes = 12u << 20;
constexpr uint64_t kMostKernelTokens = 1u << 23;  // of all rows
constexpr uint64_t kPairsOffset = 8;
constexpr uint64_t kMostBusy = 300'000'000;  // nanoseconds of a plant

uint64_t ClockOf(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}
uint64_t ThreadTime() { return ClockOf(CLOCK_THREAD_CPUTIME_ID); }

// Writes answers to bytes, as a stream does, and says at once that they have left.
class AnswerSink : public service::SessionSink {
 public:
  void Send(const v1::StreamResponse& message, service::Credit credit) override {
    std::string bytes = message.SerializeAsString();
    { const service::Credit left = std::move(credit); }
    absl::MutexLock lock(&mutex_);
    answers_.push_back(std::move(bytes));
  }
  // Waits until there are answers, or more of them; for a millisecond at most, since a step may end without one.
  void AwaitAnswers() {
    absl::MutexLock lock(&mutex_);
    const size_t before = answers_.size();
    const auto has_more = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answers_.size() > before; };
    mutex_.AwaitWithTimeout(absl::Condition(&has_more), absl::Milliseconds(1));
  }
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(answers_, {});
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> answers_ ABSL_GUARDED_BY(mutex_);
};

// Finds the first error among the answers; null if there is none.
const v1::Error* FindError(const std::vector<v1::StreamResponse>& answers) {
  for (const v1::StreamResponse& answer : answers) {
    if (answer.opened().has_error()) return &answer.opened().error();
    if (answer.forked().has_error()) return &answer.forked().error();
    if (answer.closed().has_error()) return &answer.closed().error();
    if (answer.mask_uploaded().has_error()) return &answer.mask_uploaded().error();
    if (answer.rejected().has_error()) return &answer.rejected().error();
    if (answer.results().has_error()) return &answer.results().error();
    for (const v1::RowResult& row : answer.results().rows()) {
      if (row.has_error()) return &row.error();
    }
  }
  return nullptr;
}

void AddFields(const google::protobuf::Message& message, std::set<std::string>* fields) {
  std::vector<const google::protobuf::FieldDescriptor*> set;
  const auto& reflection = *message.GetReflection();
  reflection.ListFields(message, &set);
  for (const auto* const field : set) {
    fields->emplace(field->full_name());
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      AddFields(reflection.GetMessage(message, field), fields);
    } else {
      // All elements of a list have the fields of its first.
      AddFields(reflection.GetRepeatedMessage(message, field, 0), fields);
    }
  }
}

class World {
 public:
  World(const Scenario& scenario, Plant plant, std::set<std::string>* sent)
      : scenario_(scenario), plant_(plant), sent_(sent) {
    SetShape();
    FillParameters(scenario, live_, &parameters_);
    if (scenario.Has("receipts")) {
      static auto* const folder = new testing::ReceiptFolder();
      service::ReceiptSettings settings;
      settings.key_file = folder->key_file();
      book_ = *service::ReceiptBook::Start(settings, &observer_, &log_);
    }
    engine_.emplace(book_ != nullptr ? testing::TestEngine::OnCpuWith(book_.get()) : testing::TestEngine::OnCpu({}, 1));
    service::Engine* const engine = engine_->get();
    held_at_start_ = HeapHeld();
    session_ = std::make_unique<service::Session>(engine, "default", sink_);
  }

  Measurement Play() {
    PlayAll();
    session_.reset();
    sink_->Take();
    answers_ = {};
    compact_.Clear();
    checkpoints_ = {};
    connection_.reset();
    own_region_.reset();
    measured_.left_charged_bytes = static_cast<int64_t>(ChargedBytes());
    measured_.left_bytes = HeldSince(held_at_start_, measured_.left_charged_bytes);
    return measured_;
  }

 private:
  using Request = v1::StreamRequest;

  struct Region {
    explicit Region(service::MemoryConnection* connection, uint64_t bytes) {
      auto made = connection->Register(bytes);
      auto& registered = std::get<service::MemoryConnection::Registered>(made);
      id = registered.id;
      size = registered.bytes;
      data =
          static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, registered.descriptor.get(), 0));
    }
    ~Region() { munmap(data, size); }
    uint64_t id = 0;
    uint64_t size = 0;
    char* data = nullptr;
  };

  bool Has(std::string_view option) const { return scenario_.Has(option); }
  uint32_t Size(std::string_view name, uint64_t most) const {
    return static_cast<uint32_t>(std::min(scenario_.Size(name), std::max<uint64_t>(most, 1)));
  }
  uint64_t Word(std::string_view key) const { return WordOf(scenario_.seed, key); }

  bool is_step() const {
    return scenario_.kind == Kind::kDraw || scenario_.kind == Kind::kScore || scenario_.kind == Kind::kVerifyDraft ||
           scenario_.kind == Kind::kVerifyTree || scenario_.kind == Kind::kRetry;
  }
  bool verifies() const { return scenario_.kind == Kind::kVerifyDraft || scenario_.kind == Kind::kVerifyTree; }
  bool is_compact() const { return Has("compact") && is_step(); }
  bool is_stateful() const { return Has("history"); }

  void SetShape() {
    vocabulary_ = Size("vocabulary", (1 << 20) - 1);
    drafts_ = Size("drafts", std::min<uint64_t>(service::kMaxDraftTokens, vocabulary_));
    scored_ = Size("scored", service::kMaxScoreTokens);
    positions_ = scenario_.kind == Kind::kScore ? scored_ : verifies() ? drafts_ + 1 : 1;
    rows_ = is_step() ? Size("rows", service::Limits().max_step_positions / positions_) : 1;
    if (!is_compact()) {
      const uint64_t tensors = Has("draft_row") ? 2 : 1;
      vocabulary_ = static_cast<uint32_t>(
          std::min({uint64_t{vocabulary_}, kMostTensorBytes / sizeof(float) / positions_ / tensors,
                    std::max<uint64_t>(kMostKernelTokens / rows_ / positions_, 64)}));
    }
    if (scenario_.kind == Kind::kShard || scenario_.kind == Kind::kCancel) vocabulary_ = std::max(vocabulary_, 2u);
    live_ = Has("live_vocabulary_size") ? vocabulary_ - vocabulary_ / 3 : vocabulary_;
    drafts_ = std::min(drafts_, live_);
    if (verifies()) positions_ = drafts_ + 1;
  }

  // Sends a message and takes its answers. Returns false if one is an error. `holds`: the message waits for another.
  bool Send(const Request& message, bool holds = false) {
    const std::string bytes = message.SerializeAsString();
    const testing::Delivery delivery = testing::Deliver(bytes);
    auto decoded = service::DecodeFrame(delivery.segments, delivery.bytes);
    SORTITION_CHECK(std::holds_alternative<service::Frame>(decoded));
    session_->OnFrame(std::move(std::get<service::Frame>(decoded)));
    if (!holds) AwaitIdle();
    TakeAnswers();
    return Note(message);
  }

  void AwaitIdle() {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (!session_->Idle() && absl::Now() < end) sink_->AwaitAnswers();
  }

  // A device's thread may hold a step for a moment after its answers.
  static int64_t HeldSince(int64_t before, int64_t charged) {
    const absl::Time end = absl::Now() + absl::Milliseconds(50);
    while (HeapHeld() - before > charged + (64 << 10) && absl::Now() < end) std::this_thread::yield();
    return HeapHeld() - before;
  }

  uint64_t TakeAnswers() {
    uint64_t bytes = 0;
    answers_.clear();
    for (const std::string& answer : sink_->Take()) {
      bytes += answer.size();
      SORTITION_CHECK(answers_.emplace_back().ParseFromString(answer));
    }
    return bytes;
  }

  bool Note(const Request& message) {
    const v1::Error* const error = FindError(answers_);
    if (error != nullptr && !(message.has_cancel() && error->reason() == v1::STEP_CANCELLED)) {
      measured_.error = *error;
      return false;
    }
    if (sent_ != nullptr) AddFields(message, sent_);
    return true;
  }

  uint64_t ChargedBytes() {
    service::Engine& engine = *engine_->get();
    return engine.sequences().state_bytes() + engine.masks().bytes();
  }

  void Measure(const Request& message) {
    service::Engine& engine = *engine_->get();
    FindFacts(message);
    measured_.message_bytes = message.SpaceUsedLong();
    uint64_t payload_bytes = 0;
    for (const std::string& payload : message.payloads()) payload_bytes += payload.size();
    const uint64_t charged = ChargedBytes();
    const uint64_t work = engine.ledger().work();
    const int64_t held = HeapHeld();
    {
      testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
      measured_.request_bytes = delivery.bytes->size();
      const int64_t before = HeapHeld();
      ResetHeapPeak();
      const uint64_t process_start = ClockOf(CLOCK_PROCESS_CPUTIME_ID);
      const uint64_t start = ThreadTime();
      BeBusy();
      auto decoded = service::DecodeFrame(delivery.segments, std::move(delivery.bytes));
      session_->BeginFrame(std::move(std::get<service::Frame>(decoded)));
      uint64_t called = ThreadTime();
      measured_.longest_call = called - start;
      while (session_->back_off() > absl::ZeroDuration()) {
        session_->Continue();
        const uint64_t now = ThreadTime();
        measured_.longest_call = std::max(measured_.longest_call, now - called);
        called = now;
      }
      measured_.time = called - start;
      measured_.charged_bytes = static_cast<int64_t>(ChargedBytes()) - static_cast<int64_t>(charged);
      AwaitIdle();
      const uint64_t process_time = ClockOf(CLOCK_PROCESS_CPUTIME_ID) - process_start;
      measured_.device_time = process_time - std::min(process_time, ThreadTime() - start);
      measured_.peak_bytes = HeapPeak() - before;
    }
    measured_.charged_bytes =
        std::max(measured_.charged_bytes, static_cast<int64_t>(ChargedBytes()) - static_cast<int64_t>(charged));
    // A step that waits is charged to the stream's window.
    if (!session_->Idle()) measured_.charged_bytes += static_cast<int64_t>(measured_.request_bytes);
    measured_.answer_bytes = TakeAnswers();
    Note(message);
    answers_ = {};
    measured_.kept_bytes = HeldSince(held, measured_.charged_bytes);
    measured_.is_measured = true;
    const uint64_t bytes =
        kByte * (measured_.request_bytes - payload_bytes + measured_.answer_bytes) + kPayloadByte * payload_bytes;
    measured_.price = bytes + engine.ledger().work() - work;
    if (plant_ == Plant::kTenthPrice) measured_.price /= 10;
  }

  void FindFacts(const Request& message) {
    Facts& facts = measured_.facts;
    const v1::SamplingParameters& parameters = parameters_;
    facts.rows = is_step() ? rows_ : 0;
    facts.positions = facts.rows * positions_;
    facts.history = is_stateful() ? scenario_.Size("history") : 0;
    facts.distinct = std::min<uint64_t>({facts.history, scenario_.Size("distinct"), live_});
    facts.edits = static_cast<uint64_t>(parameters.logit_bias_size() + parameters.banned_token_ids_size() +
                                        parameters.stop_token_ids_size() + parameters.bad_words_size());
    if (Penalises()) facts.edits += facts.distinct;
    for (const v1::StepRow& row : message.step().rows()) {
      facts.lists += static_cast<uint64_t>(row.mask().banned_tokens_size() + row.mask().allowed_tokens().tokens_size() +
                                           row.append_tokens_size());
      for (const v1::RowMask& mask : row.verify_draft().masks()) {
        facts.lists += static_cast<uint64_t>(mask.banned_tokens_size() + mask.allowed_tokens().tokens_size());
      }
      for (const auto& sparse : row.verify_draft().sparse_probabilities()) {
        facts.lists += static_cast<uint64_t>(sparse.tokens_size());
      }
    }
    uint64_t asked = 128;
    const uint64_t requested = std::max<uint64_t>(static_cast<uint64_t>(parameters.logprob_token_ids_size()),
                                                  Has("requested") ? scenario_.Size("requested") : 0);
    const auto add = [&](bool has, uint32_t top) {
      if (has) asked += 20 + 12 * (uint64_t{top} + requested);
    };
    add(parameters.has_raw_logprobs(), parameters.raw_logprobs().top());
    add(parameters.has_processed_logprobs(), parameters.processed_logprobs().top());
    add(parameters.has_tempered_logprobs(), parameters.tempered_logprobs().top());
    if (parameters.kept_set().tokens()) asked += 4 * uint64_t{live_};
    if (Has("return_probabilities")) asked += 4 * uint64_t{live_};
    if (Has("receipts")) asked += 512;
    facts.asked_bytes = asked * std::max<uint64_t>(facts.positions, 1);
  }

  bool Penalises() const {
    return is_stateful() && (Has("repetition_penalty") || Has("frequency_penalty") || Has("presence_penalty"));
  }
  // Times that a token of a history is looked at.
  // Does what the plant stands for.
  void BeBusy() const {
    const Facts& facts = measured_.facts;
    uint64_t work = 0;
    switch (plant_) {
      case Plant::kNone:
      case Plant::kTenthPrice:
        return;
      case Plant::kInsertedCounts:
        if (Penalises() && (scenario_.kind == Kind::kOpen || scenario_.kind == Kind::kLastPiece)) {
          work = facts.distinct * facts.distinct / 4;
        }
        break;
      case Plant::kSearchingFollower:
        if (is_step() && is_stateful()) {
          work = facts.history * (positions_ - 1 + (Has("append_tokens") ? scenario_.Size("append") : 0)) / 4;
        }
        break;
      case Plant::kFreeFork:
        if (scenario_.kind == Kind::kFork) work = 500 * facts.history;
        break;
      case Plant::kEarlyLookAhead:
        if (is_compact()) work = 40 * facts.edits * facts.positions;
        break;
      case Plant::kMergedBans:
        if (is_step() && Has("mask.banned_tokens")) work = 40 * facts.edits * facts.positions;
        break;
      case Plant::kRecountedPhases:
        if (is_step() && Has("phases")) work = 40 * facts.distinct * facts.positions;
        break;
    }
    const uint64_t end = ThreadTime() + std::min(work, kMostBusy);
    while (ThreadTime() < end) {
    }
  }

  v1::OpenSequence Open(const std::string& id, uint64_t epoch, bool has_history = true) const {
    v1::OpenSequence open = testing::MakeOpen(id, epoch, vocabulary_);
    *open.mutable_parameters() = parameters_;
    if (Has("live_vocabulary_size")) open.set_live_vocabulary_size(live_);
    if (Has("choice_index")) open.set_choice_index(static_cast<uint32_t>(Word("choice") % 65536));
    if (Has("model")) open.set_model(std::string(128, 'm'));
    if (Has("receipts")) open.mutable_receipts()->set_salt(std::string(16, 's'));
    if (!is_stateful() || !has_history) return open;
    const uint64_t length = scenario_.Size("history");
    const uint32_t distinct = Size("distinct", live_);
    auto& tokens = *open.mutable_history()->mutable_tokens();
    tokens.Reserve(static_cast<int>(length));
    for (uint64_t i = 0; i < length; ++i) tokens.Add(static_cast<uint32_t>(i % distinct));
    open.mutable_history()->set_prompt_length(static_cast<uint32_t>(length / 2));
    return open;
  }

  Request Fork(const std::string& id) const {
    Request request;
    v1::ForkSequence& fork = *request.mutable_fork();
    fork.set_parent_request_id("s0");
    *fork.mutable_child() = Open(id, 1, false);
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

  // Opens one sequence for each row.
  bool OpenAll() {
    for (uint32_t row = 0; row < rows_; ++row) {
      const std::string id = absl::StrCat("s", row);
      const bool forks = row > 0 && is_stateful();
      if (!Send(forks ? Fork(id) : testing::Message(Open(id, 1)))) return false;
      if (row > 0) continue;
      for (const v1::StreamResponse& answer : answers_) {
        if (!answer.opened().has_state()) continue;
        position_ = answer.opened().state().position();
        hash_ = answer.opened().state().history_hash();
      }
    }
    return true;
  }

  void PlayAll() {
    Request hello = testing::Hello("worker");
    if (Has("client")) hello.mutable_hello()->set_client(std::string(128, 'c'));
    if (Word("unknown") % 2 == 0) testing::IgnoreUnknownFields(hello.mutable_hello());
    if (scenario_.kind == Kind::kHello) return Measure(hello);
    if (!Send(hello)) return;
    switch (scenario_.kind) {
      case Kind::kHello:
        return;
      case Kind::kOpen:
        return Measure(testing::Message(Open("s0", 1)));
      case Kind::kLastPiece:
        return MeasureLastPiece();
      case Kind::kReopen:
        if (OpenAll()) Measure(testing::Message(Open("s0", 2, false)));
        return;
      case Kind::kFork:
        if (OpenAll()) Measure(Fork("child"));
        return;
      case Kind::kDraw:
      case Kind::kScore:
      case Kind::kVerifyDraft:
      case Kind::kVerifyTree:
      case Kind::kRetry:
        return MeasureStep();
      case Kind::kShard:
      case Kind::kCancel:
        if (!OpenAll() || !Send(Shard(1, 0), true)) return;
        return Measure(scenario_.kind == Kind::kShard ? Shard(2, 1) : testing::MakeCancel(1));
      case Kind::kClose: {
        if (!OpenAll()) return;
        Request close = testing::MakeClose("s0", 1);
        if (!Has("close.epoch")) close.mutable_close()->clear_epoch();
        if (Has("shard.epoch")) close.mutable_close()->set_shard_index(0);
        return Measure(close);
      }
      case Kind::kUploadMask:
        return Measure(Upload());
      case Kind::kReleaseMask: {
        if (!Send(Upload())) return;
        Request release = Upload();
        release.clear_payloads();
        release.mutable_upload_mask()->clear_mask();
        return Measure(release);
      }
      case Kind::kAttachMemory:
        return Measure(Attach());
      case Kind::kBringAnswer:
        return Measure(Bring());
    }
  }

  void MeasureLastPiece() {
    v1::OpenSequence whole = Open("s0", 1);
    if (!whole.has_history() || whole.history().tokens_size() < 2) return Measure(testing::Message(whole));
    v1::OpenSequence last = whole;
    const int half = whole.history().tokens_size() / 2;
    whole.mutable_history()->mutable_tokens()->Truncate(half);
    whole.mutable_history()->set_continues(true);
    if (!Send(testing::Message(whole))) return;
    auto& tokens = *last.mutable_history()->mutable_tokens();
    tokens.erase(tokens.begin(), tokens.begin() + half);
    last.mutable_history()->set_offset(static_cast<uint32_t>(half));
    Measure(testing::Message(last));
  }

  void MeasureStep() {
    if (!OpenAll()) return;
    if (Has("mask.uploaded_mask_id") && !Send(Upload())) return;
    if (Has("region") && !Send(Attach())) return;
    if (Has("checkpoint")) {
      if (!Send(Step(1, 1, true))) return;
      checkpoints_.resize(rows_);
      for (const v1::StreamResponse& answer : answers_) {
        for (const v1::RowResult& row : answer.results().rows()) {
          checkpoints_.at(row.row()) = row.draw().checkpoint();
          hash_ = row.draw().history_hash();  // the sequences have equal histories and draw equal tokens
        }
      }
      if (is_stateful()) ++position_;
      step_id_ = 2;
    }
    const bool retries = scenario_.kind == Kind::kRetry;
    if (retries && !Send(Step(10, step_id_, false))) return;
    Measure(Step(11, step_id_, false));
  }

  // `is_plain`: only a draw for each sequence.
  Request Step(uint64_t batch_id, uint64_t step_id, bool is_plain) {
    Request request;
    v1::Step& step = *request.mutable_step();
    step.set_batch_id(batch_id);
    v1::LogitsTensor& logits = *step.mutable_logits();
    logits.set_dtype(v1::DTYPE_F32);
    logits.set_vocabulary_size(vocabulary_);
    const bool compact = is_compact() && !is_plain;
    const uint32_t positions = is_plain ? 1 : positions_;
    // All rows share their tensor rows.
    if (compact) {
      logits.mutable_pairs()->mutable_inline_()->set_payload(0);
      request.add_payloads(Pairs());
    } else {
      AddLogits(positions, is_plain, &request);
    }
    v1::StepRow row;
    row.set_step_id(step_id);
    row.set_position(position_);
    if (is_stateful()) row.set_history_hash(hash_);
    if (!is_plain) FillRow(&row, &request);
    if (compact) {
      for (uint32_t i = 0; i < positions; ++i) *row.add_compact() = compact_;
    } else {
      row.set_tensor_row(0);
    }
    for (uint32_t i = 0; i < rows_; ++i) {
      *step.add_rows() = row;
      v1::StepRow& own = *step.mutable_rows(static_cast<int>(i));
      own.set_request_id(absl::StrCat("s", i));
      if (!is_plain && !checkpoints_.empty()) own.set_checkpoint(checkpoints_[i]);
    }
    if (is_plain) return request;
    if (Has("timeout")) step.mutable_timeout()->set_seconds(5);
    if (Has("priority")) step.set_priority(static_cast<int32_t>(Word("priority") % 201) - 100);
    if (Has("trace")) {
      step.mutable_trace()->set_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
      step.mutable_trace()->set_tracestate(std::string(512, 't'));
    }
    if (Has("answer_early")) step.set_answer_early(true);
    return request;
  }

  static float LogitOf(uint32_t token, uint32_t live) {
    return 10.0f - 20.0f * static_cast<float>(token) / static_cast<float>(live);
  }

  void AddLogits(uint32_t positions, bool is_plain, Request* request) {
    v1::LogitsTensor& logits = *request->mutable_step()->mutable_logits();
    const uint32_t stride = vocabulary_ + (Has("row_stride_bytes") ? 8 : 0);
    if (Has("row_stride_bytes")) logits.set_row_stride_bytes(stride * 4);
    // Absent, the tensor has what all rows take.
    logits.set_tensor_rows(positions);
    std::vector<float> values(uint64_t{stride} * positions);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto word = static_cast<uint32_t>(i * 2654435761u);
      values[i] = static_cast<float>(word >> 16) / 6553.6f;
    }
    const std::string bytes = testing::F32Bytes(values);
    if (!Has("region") || connection_ == nullptr || is_plain) {
      logits.mutable_source()->mutable_inline_()->set_payload(static_cast<uint32_t>(request->payloads_size()));
      request->add_payloads(bytes);
      return;
    }
    if (own_region_ == nullptr) own_region_ = std::make_unique<Region>(connection_.get(), bytes.size() + 4096);
    std::memcpy(own_region_->data + 4096, bytes.data(), bytes.size());
    auto& region = *logits.mutable_source()->mutable_region();
    region.set_region_id(own_region_->id);
    region.set_offset(4096);
    region.set_length(bytes.size());
    if (!Has("ready")) return;
    const uint32_t value = 1;
    std::memcpy(own_region_->data + 4, &value, sizeof(value));
    logits.mutable_ready()->set_region_id(own_region_->id);
    logits.mutable_ready()->set_offset(4);
    logits.mutable_ready()->set_value(value);
  }

  // Returns the tokens and logits of a compact row, and sets compact_.
  std::string Pairs() {
    const uint32_t first = Size("compact.first", live_);
    const uint32_t others = std::min(live_ - first, Size("compact.others", 4096));
    std::string bytes(kPairsOffset, '\0');
    for (uint32_t token = 0; token < first + others; ++token) {
      bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
    }
    for (uint32_t token = 0; token < first + others; ++token) {
      const float logit = LogitOf(token, live_);
      bytes.append(reinterpret_cast<const char*>(&logit), sizeof(logit));
    }
    compact_.set_offset(kPairsOffset);
    compact_.set_first(first);
    compact_.set_others(others);
    compact_.set_is_whole(Has("compact.is_whole") && first == live_);
    const bool has_sum = Has("compact.unit_sum") || Has("compact.sum");
    if (has_sum && live_ <= 65536) {
      std::vector<float> values(live_);
      for (uint32_t token = 0; token < live_; ++token) values[token] = LogitOf(token, live_);
      const kernels::RowParameters parameters = testing::PlainRowParameters(parameters_);
      kernels::RowRequest whole;
      whole.logits = values.data();
      whole.live_vocabulary = live_;
      whole.parameters = &parameters;
      const auto stated = law::StateRowReference(whole, 1, {});
      if (stated && stated->unit_sum && Has("compact.unit_sum")) compact_.set_unit_sum(*stated->unit_sum);
      if (stated && stated->sum && Has("compact.sum")) compact_.set_sum(*stated->sum);
    }
    return bytes;
  }

  v1::RowMask Mask() const {
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
      const uint32_t count = Size("allowed", live_);
      for (uint32_t i = 0; i < count; ++i) mask.mutable_allowed_tokens()->add_tokens(i);
    }
    return mask;
  }
  std::string MaskBytes() const { return std::string(uint64_t{(vocabulary_ + 31) / 32} * 4, '\xff'); }

  Request Upload() const {
    Request request;
    v1::UploadMask& upload = *request.mutable_upload_mask();
    upload.set_mask_id(1);
    upload.set_vocabulary_size(vocabulary_);
    upload.mutable_mask()->set_rows(1);
    upload.mutable_mask()->mutable_source()->mutable_inline_()->set_payload(0);
    request.add_payloads(MaskBytes());
    return request;
  }

  Request Attach() {
    connection_ = std::get<std::shared_ptr<service::MemoryConnection>>(engine_->get()->regions().Connect([] {}));
    Request request;
    request.mutable_attach_memory()->set_token(connection_->token());
    return request;
  }

  // Sets a row's task and the options of a step.
  void FillRow(v1::StepRow* row, Request* request) {
    if (Has("draw_salt")) row->set_draw_salt(static_cast<uint32_t>(Word("salt") % 65536));
    if (is_stateful() && (Has("truncate_to") || Has("append_tokens"))) Rewrite(row);
    const v1::RowMask mask = Mask();
    const bool has_mask = mask.ByteSizeLong() > 0;
    const bool has_masks = Has("masks") && verifies();
    if (has_mask && !has_masks) *row->mutable_mask() = mask;
    if (mask.has_mask_row()) {
      v1::MaskTensor& tensor = *request->mutable_step()->mutable_masks();
      tensor.set_rows(1);
      tensor.mutable_source()->mutable_inline_()->set_payload(static_cast<uint32_t>(request->payloads_size()));
      request->add_payloads(MaskBytes());
    }
    if (scenario_.kind == Kind::kScore) return FillScore(row->mutable_score());
    if (!verifies()) {
      row->mutable_draw();
      return;
    }
    if (scenario_.kind == Kind::kVerifyTree) {
      FillVerify(row->mutable_verify_tree(), request);
      FillTree(row->mutable_verify_tree());
    } else {
      FillVerify(row->mutable_verify_draft(), request);
    }
    if (!has_masks) return;
    for (uint32_t i = 0; i < positions_; ++i) {
      *(row->has_verify_tree() ? row->mutable_verify_tree()->add_masks() : row->mutable_verify_draft()->add_masks()) =
          mask;
    }
  }

  void Rewrite(v1::StepRow* row) {
    testing::PlainSequence plain(Open("s0", 1));
    if (Has("truncate_to")) {
      plain.TruncateTo(plain.position() - std::min(plain.position(), Size("truncate", 16384)));
      row->set_truncate_to(plain.position());
    }
    if (Has("append_tokens")) {
      const uint32_t count = Size("append", 16384);
      for (uint32_t i = 0; i < count; ++i) {
        row->add_append_tokens(i % live_);
        plain.Append(i % live_);
      }
    }
    row->set_position(plain.position());
    row->set_history_hash(plain.hash());
  }

  void FillScore(v1::Score* score) const {
    if (Has("race")) score->set_race(true);
    for (uint32_t i = 0; i < scored_; ++i) {
      score->add_tokens(i % live_);
      if (!Has("requested")) continue;
      v1::TokenSequence& requested = *score->add_requested();
      const uint32_t count = Size("requested", std::min(live_, 1000u));
      for (uint32_t token = 0; token < count; ++token) requested.add_tokens(token);
    }
  }

  bool has_probabilities() const { return Has("draft_row") || Has("sparse_probabilities"); }
  bool is_greedy() const { return parameters_.has_temperature() && parameters_.temperature() == 0; }

  template <typename Verify>
  void FillVerify(Verify* verify, Request* request) const {
    const bool is_tree = scenario_.kind == Kind::kVerifyTree;
    const uint64_t word = Word("mode");
    v1::VerifyMode mode = is_greedy()                            ? v1::VERIFY_MODE_GREEDY
                          : has_probabilities() || word % 2 == 0 ? v1::VERIFY_MODE_REJECTION
                                                                 : v1::VERIFY_MODE_COUPLED;
    if (!is_tree && has_probabilities() && word % 4 == 0) mode = v1::VERIFY_MODE_BLOCK;
    verify->set_mode(mode);
    if (Has("return_probabilities")) verify->set_return_probabilities(true);
    for (uint32_t i = 0; i < drafts_; ++i) verify->add_draft_tokens(i);
    const uint32_t distributions = CountDistributions();
    if (Has("draft_row")) {
      verify->set_draft_row(0);
      v1::DraftTensor& tensor = *request->mutable_step()->mutable_draft_probabilities();
      tensor.set_dtype(v1::DTYPE_F32);
      tensor.set_rows(distributions);
      tensor.mutable_source()->mutable_inline_()->set_payload(static_cast<uint32_t>(request->payloads_size()));
      std::vector<float> values(uint64_t{vocabulary_} * distributions);
      for (uint32_t row = 0; row < distributions; ++row) {
        std::fill_n(values.begin() + static_cast<ptrdiff_t>(uint64_t{row} * vocabulary_), live_,
                    1.0f / static_cast<float>(live_));
      }
      request->add_payloads(testing::F32Bytes(values));
    } else if (Has("sparse_probabilities")) {
      const uint32_t count = std::max(Size("sparse", live_), drafts_);
      for (uint32_t i = 0; i < distributions; ++i) {
        v1::SparseProbabilities& sparse = *verify->add_sparse_probabilities();
        for (uint32_t token = 0; token < count; ++token) {
          sparse.add_tokens(token);
          sparse.add_probabilities(1.0f / static_cast<float>(count));
        }
      }
    }
  }

  // A chain, a star or a binary tree.
  int32_t ParentOf(uint32_t draft) const {
    const uint64_t shape = Word("tree") % 3;
    if (shape == 0) return static_cast<int32_t>(draft) - 1;
    return shape == 1 || draft == 0 ? -1 : static_cast<int32_t>((draft - 1) / 2);
  }
  uint32_t CountDistributions() const {
    if (scenario_.kind == Kind::kVerifyDraft) return drafts_;
    std::set<int32_t> parents;
    for (uint32_t i = 0; i < drafts_; ++i) parents.insert(ParentOf(i));
    return static_cast<uint32_t>(parents.size());
  }
  void FillTree(v1::VerifyTree* tree) const {
    for (uint32_t i = 0; i < drafts_; ++i) tree->add_parents(ParentOf(i));
    if (has_probabilities()) {
      tree->set_draft_sampling(Word("sampling") % 2 == 0 ? v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT
                                                         : v1::DRAFT_SAMPLING_WITH_REPLACEMENT);
    }
  }

  Request Shard(uint64_t batch_id, uint32_t index) {
    Request request;
    v1::Step& step = *request.mutable_step();
    step.set_batch_id(batch_id);
    v1::LogitsTensor& logits = *step.mutable_logits();
    logits.set_dtype(v1::DTYPE_F32);
    const uint32_t half = vocabulary_ / 2;
    const uint32_t width = index == 0 ? half : vocabulary_ - half;
    logits.set_vocabulary_size(width);
    v1::VocabularyShard& shard = *logits.mutable_shard();
    shard.set_index(index);
    shard.set_count(2);
    shard.set_first_token(index == 0 ? 0 : half);
    shard.set_total_vocabulary_size(vocabulary_);
    if (Has("shard.epoch")) shard.set_epoch(1);
    logits.mutable_source()->mutable_inline_()->set_payload(0);
    request.add_payloads(std::string(uint64_t{width} * sizeof(float), '\0'));
    v1::StepRow& row = *step.add_rows();
    row.set_request_id("s0");
    row.set_step_id(1);
    row.set_position(position_);
    if (index == 0 && is_stateful()) row.set_history_hash(hash_);
    if (Has("draw_salt")) row.set_draw_salt(7);
    return request;
  }

  Request Bring() const {
    Request request;
    v1::BringAnswer& bring = *request.mutable_bring_answer();
    bring.mutable_asked()->set_request_id("s0");
    bring.mutable_asked()->set_step_id(1);
    bring.mutable_asked()->set_position(1);
    bring.mutable_result()->set_step_id(1);
    v1::DrawResult& draw = *bring.mutable_result()->mutable_draw();
    draw.set_token(1);
    const uint32_t count = Size("banned", 65536);
    for (uint32_t i = 0; i < count; ++i) draw.add_kept_tokens(i);
    return request;
  }

  const Scenario& scenario_;
  const Plant plant_;
  std::set<std::string>* const sent_;
  v1::SamplingParameters parameters_;
  uint32_t vocabulary_ = 1;
  uint32_t live_ = 1;
  uint32_t drafts_ = 1;
  uint32_t scored_ = 1;
  uint32_t positions_ = 1;  // of a row
  uint32_t rows_ = 1;
  uint32_t position_ = 0;
  uint64_t hash_ = 0;
  uint64_t step_id_ = 1;
  std::vector<std::string> checkpoints_;  // by row
  v1::CompactRow compact_;
  int64_t held_at_start_ = 0;
  testing::CountingObserver observer_;
  testing::RecordingEventLog log_;
  std::unique_ptr<service::ReceiptBook> book_;
  std::optional<testing::TestEngine> engine_;
  const std::shared_ptr<AnswerSink> sink_ = std::make_shared<AnswerSink>();
  std::unique_ptr<service::Session> session_;
  std::shared_ptr<service::MemoryConnection> connection_;
  std::unique_ptr<Region> own_region_;
  std::vector<v1::StreamResponse> answers_;
  Measurement measured_;
};

}  // namespace

Measurement Run(const Scenario& scenario, Plant plant, std::set<std::string>* sent) {
  CountHeapOfThisThread();
  return World(scenario, plant, sent).Play();
}

}  // namespace sortition::costs
