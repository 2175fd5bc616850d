// The rows of a call on their way through the batcher.
#include "service/stream/sample_run.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/batch/batcher.h"
#include "service/client_accounts.h"
#include "service/event_log.h"
#include "service/sequence/granted_row.h"
#include "service/stream/device_needs.h"
#include "service/stream/opening.h"
#include "service/stream/stream_memory.h"
#include "service/text/cost.h"
#include "service/text/make_receipts.h"
#include "service/wire/compile_parameters.h"
#include "service/wire/encode.h"
#include "service/wire/encode_result.h"
#include "service/wire/open_request.h"
#include "service/wire/sample_request.h"

namespace sortition::service {
namespace {

// Names the worker session and the sequences of calls in logs.
constexpr char kName[] = "sample";

}  // namespace

// Start and Continue are for one thread. Then outputs come from any thread, each row's once.
class SampleRun::Rows final : public PendingStep, public std::enable_shared_from_this<SampleRun::Rows> {
 public:
  Rows(Engine* engine, std::string tenant, std::shared_ptr<const v1::SampleRequest> request, uint64_t bytes)
      : engine_(*engine),
        tenant_(std::move(tenant)),
        account_(engine->clients().Of(tenant_)),
        memory_(&engine->sequences(), tenant_),
        request_(std::move(request)),
        bytes_(bytes) {
    owner = OwnerOfCalls(tenant_);
  }

  void Start(absl::Duration timeout, Done done) {
    done_ = std::move(done);
    if (auto refusal = CheckSample(*request_, engine_.limits())) return done_(*std::move(refusal));
    deadline = engine_.clock().Now() + std::max(timeout, absl::Nanoseconds(1));
    response_.mutable_seeds()->Resize(request_->rows_size(), 0);
    // To read that much may have taken the time of a piece: a byte is a part at most.
    const uint64_t read = (price::kReadByte + price::kReadPart) * (bytes_ - request_->logits().size());
    has_pieces_ = read > kPieceWork && request_->rows_size() > 0;
    if (!has_pieces_) Continue();
  }

  void Continue() {
    Bill piece;
    while (response_.rows_size() < request_->rows_size() && !piece.piece_is_full()) {
      const int index = response_.rows_size();
      const v1::SamplingParameters& parameters = request_->rows(index).parameters();
      const uint64_t receipts = engine_.receipts() != nullptr ? price::kReceiptByte * parameters.ByteSizeLong() : 0;
      const uint64_t cost = CompileCost(parameters) + receipts;
      auto refusal = CheckCompileCost(cost, SampleRowField(index));
      piece.Add(price::kRow + (refusal ? 0 : cost));
      v1::RowResult& result = *response_.add_rows();
      result.set_row(static_cast<uint32_t>(index));
      if (!refusal) refusal = Open(index);
      if (refusal) {
        engine_.observer().Refused(refusal->reason, refusal->field, 1);
        EncodeError(*refusal, result.mutable_error());
      }
    }
    engine_.Spend(account_.get(), piece.piece_work());
    has_pieces_ = response_.rows_size() < request_->rows_size();
    if (has_pieces_) return;
    if (opened_.empty()) return done_(std::move(response_));
    step_rows_ = static_cast<uint32_t>(opened_.size());
    arrived = engine_.clock().Now();
    auto refusal = Submit(std::exchange(opened_, {}));
    if (!refusal) return;
    engine_.observer().Refused(refusal->reason, refusal->field, step_rows_);
    done_(*std::move(refusal));
  }

  bool has_pieces() const { return has_pieces_; }

  void Stop() {
    if (unanswered_.load() == 0) return;
    Cancel();
    engine_.batcher().Sweep();
  }

  void Deliver(std::span<const QueuedOutput> outputs) override {
    uint32_t tokens = 0;
    for (const QueuedOutput& output : outputs) {
      Row& row = rows_[output.index];
      output.output != nullptr ? row.run.Take(0, std::move(*output.output)) : row.run.Take(0, *output.refusal);
      tokens += End(&row);
    }
    if (tokens > 0) engine_.observer().Count(Counter::kTokens, tokens);
    const auto rows = static_cast<uint32_t>(outputs.size());
    const uint32_t before = unanswered_.fetch_sub(rows);
    SORTITION_CHECK(before >= rows);
    if (before == rows) Finish();
  }

 private:
  struct Opened {
    int index = 0;
    RowSequence sequence;
  };
  struct Row {
    Row(GrantedRow&& row, v1::RowResult* its) : run(std::move(row)), result(its) {}
    SequenceRow run;
    v1::RowResult* result;  // in response_
  };

  // Makes a sequence of row `index` alone.
  std::optional<Refusal> Open(int index) {
    const v1::SampleRow& row = request_->rows(index);
    if (auto refusal = CheckSampleRow(row, index)) return refusal;
    OpenRequest request;
    request.request_id = absl::StrCat(index);
    const std::shared_ptr<const TenantPolicy> policy = FindPolicy(engine_, tenant_);
    v1::SamplingParameters changed;
    if (policy != nullptr) changed = row.parameters();
    const v1::SamplingParameters& parameters = policy != nullptr ? changed : row.parameters();
    if (auto refusal = Prepare(row, index, policy.get(), &changed, &request)) return refusal;
    const SequenceSpec& spec = *request.spec;
    if (!spec.stateful()) response_.set_seeds(index, spec.seed);
    // The answer has no place that could say what a policy does. The row's own options need no state.
    if (spec.stateful() || (request.policy && (request.policy->has_applied() || request.policy->removed_size() > 0))) {
      return Refusal{Reason::kContradiction, SampleRowField(index) + ".parameters", "",
                     "the operator's policy changes them, which only the opening of a sequence on a stream can state"};
    }
    const uint64_t bytes = MostDrawBytes(spec);
    if (answer_bytes_ + bytes > kMaxSampleBytes) {
      const char* const field = spec.parameters.kept_tokens ? ".parameters.kept_set" : ".parameters";
      return Refusal{Reason::kTooMany, SampleRowField(index) + field, Bounds::max_sample_bytes().Text(),
                     absl::StrCat("the row's result may have ", bytes, " bytes, those before it ", answer_bytes_,
                                  "; a stream answers in parts")};
    }
    answer_bytes_ += bytes;
    engine_.observer().Count(Counter::kSequencesOpened, 1);
    engine_.event_log().SequenceOpened({kName, "", spec.vocabulary, false});
    RowSequence sequence;
    sequence.spec = request.spec;
    if (request.receipt_salt) sequence.receipts = BeginReceipts(&engine_, parameters, request);
    opened_.push_back({index, std::move(sequence)});
    return std::nullopt;
  }

  // `policy`: null if there is none. It changes the parameters in place.
  std::optional<Refusal> Prepare(const v1::SampleRow& row, int index, const TenantPolicy* policy,
                                 v1::SamplingParameters* changed, OpenRequest* request) {
    if (auto refusal = account_->Charge(0, row.ByteSizeLong(), "open")) return refusal;
    const std::string path = SampleRowField(index);
    if (policy != nullptr) {
      std::string watermark_key_id;
      auto refusal = TakePolicy(&engine_, policy, path, changed, &watermark_key_id, &request->policy);
      if (refusal) return refusal;
    }
    const v1::SamplingParameters& parameters = policy != nullptr ? *changed : row.parameters();
    auto spec = CompileSampleRow(*request_, index, parameters, engine_.limits(), &engine_.entropy());
    if (auto* refusal = std::get_if<Refusal>(&spec)) return std::move(*refusal);
    request->spec = std::get<std::shared_ptr<const SequenceSpec>>(std::move(spec));
    if (auto refusal = PrepareReceipts(&engine_, path, request)) return refusal;
    const DeviceKeeper& devices = engine_.batcher().keeper();
    if (auto refusal = WhyNoDevice(devices, parameters, false, path, *request->spec)) return refusal;
    const char* const width = request_->has_live_vocabulary_size() ? "live_vocabulary_size" : "vocabulary_size";
    if (auto refusal = WhyTooWide(devices, *request->spec, width)) return refusal;
    return memory_.Grow(request->spec->bytes(), "open");
  }

  // Returns why no row can run.
  std::optional<Refusal> Submit(std::vector<Opened> opened) {
    if (auto refusal = account_->Charge(step_rows_, bytes_, "step")) return refusal;
    engine_.observer().StepReceived(step_rows_, request_->logits().size());
    const auto judged = CheckSampleLogits(*request_);
    if (const auto* refusal = std::get_if<Refusal>(&judged)) return *refusal;
    const auto dtype = std::get<kernels::DType>(judged);
    const uint64_t element = kernels::ElementBytes(dtype);
    const auto* const logits = reinterpret_cast<const std::byte*>(request_->logits().data());
    rows_.reserve(opened.size());
    std::vector<QueuedRow> queued;
    for (Opened& row : opened) {
      auto plan = Plan(row);
      if (const auto* refusal = std::get_if<Refusal>(&plan)) {
        Refuse(*refusal, response_.mutable_rows(row.index));
        continue;
      }
      const uint64_t live = row.sequence.spec->live_vocabulary;
      GrantedRow granted{std::move(row.sequence), std::get<RowPlan>(std::move(plan)), {}, {}};
      const SequenceRow& run = rows_.emplace_back(std::move(granted), response_.mutable_rows(row.index)).run;
      QueuedRow& to = queued.emplace_back();
      to.index = static_cast<uint32_t>(rows_.size() - 1);
      to.sequence = kName;
      const uint64_t at = static_cast<uint64_t>(row.index) * request_->vocabulary_size() * element;
      to.row.segments.push_back({logits + at, live * element});
      to.row.request = run.RequestAt(0, dtype, nullptr, kernels::DType::kF32);
    }
    unanswered_.store(static_cast<uint32_t>(rows_.size()));
    if (rows_.empty()) {
      Finish();
      return std::nullopt;
    }
    auto refusal = engine_.batcher().Submit(shared_from_this(), std::move(queued));
    if (!refusal) return std::nullopt;
    unanswered_.store(0);
    for (Row& row : rows_) row.run.Abort();
    return refusal;
  }

  std::variant<RowPlan, Refusal> Plan(const Opened& row) const {
    auto plan = PlanSampleRow(request_->rows(row.index), row.index, engine_.limits());
    if (row.sequence.receipts == nullptr || std::holds_alternative<Refusal>(plan)) return plan;
    if (auto refusal = engine_.receipts()->WhyUnable()) {
      refusal->field = SampleRowField(row.index);
      return *std::move(refusal);
    }
    return plan;
  }

  // Ends a row. Returns the number of its tokens.
  uint32_t End(Row* row) {
    SequenceRow& run = row->run;
    auto committed = run.Commit();
    if (auto* refusal = std::get_if<Refusal>(&committed)) {
      refusal->field = ToSampleField(refusal->field);
      Refuse(*refusal, row->result);
      return 0;
    }
    const RowResult& result = std::get<RowResult>(committed);
    EncodeWholeDraw(result, run.spec(), row->result->mutable_draw());
    if (run.receipts() != nullptr) run.receipts()->Add(MakeReceipts(result, run.plan(), run.spec()));
    return 1;
  }

  void Refuse(const Refusal& refusal, v1::RowResult* result) {
    engine_.observer().Refused(refusal.reason, refusal.field, 1);
    EncodeError(refusal, result->mutable_error());
    refused_for_.store(refusal.reason, std::memory_order_relaxed);
    refused_.fetch_add(1, std::memory_order_relaxed);
  }

  // Every row is answered.
  void Finish() {
    NotedStep noted;
    noted.arrived = noted.ready = arrived;
    noted.answered = engine_.clock().Now();
    engine_.observer().StepAnswered(noted.latency());
    noted.slow = noted.latency() >= engine_.slow_step();
    if (noted.slow) Note(noted);
    if (!cancelled()) done_(std::move(response_));
  }

  void Note(NotedStep noted) {
    noted.worker_session = kName;
    noted.batch_id = 1;
    noted.rows = step_rows_;
    noted.bytes = bytes_;
    noted.refused_rows = refused_.load(std::memory_order_relaxed);
    if (noted.refused_rows > 0) noted.refused_for = ReasonName(refused_for_.load(std::memory_order_relaxed));
    std::vector<BatchRun> of_devices;
    noted.runs_left_out = runs().AppendTo(&of_devices);
    noted.runs = of_devices;
    engine_.event_log().StepNoted(noted);
  }

  Engine& engine_;
  const std::string tenant_;
  const std::shared_ptr<ClientAccount> account_;
  StreamMemory memory_;  // of the rows' options
  const std::shared_ptr<const v1::SampleRequest> request_;
  const uint64_t bytes_;
  Done done_;
  bool has_pieces_ = false;
  std::vector<Opened> opened_;            // until they are submitted
  uint64_t answer_bytes_ = 0;             // that results of the opened rows may have
  uint32_t step_rows_ = 0;                // those that were opened
  std::vector<Row> rows_;                 // fixed once submitted
  v1::SampleResponse response_;           // a row of it is written by the thread that ends the row
  std::atomic<uint32_t> unanswered_ = 0;  // of rows_
  std::atomic<uint32_t> refused_ = 0;     // rows of the step
  std::atomic<Reason> refused_for_ = {};  // of one of them
};

SampleRun::SampleRun(Engine* engine, std::string tenant, std::shared_ptr<const v1::SampleRequest> request,
                     uint64_t bytes)
    : rows_(std::make_shared<Rows>(engine, std::move(tenant), std::move(request), bytes)) {}

SampleRun::~SampleRun() { rows_->Stop(); }

void SampleRun::Start(absl::Duration timeout, Done done) { rows_->Start(timeout, std::move(done)); }

bool SampleRun::has_pieces() const { return rows_->has_pieces(); }

void SampleRun::Continue() { rows_->Continue(); }

}  // namespace sortition::service
