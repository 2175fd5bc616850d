// Opens and rows as jobs of a pool.
#include "sortition/in_process.h"

#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/transport/transport.h"
#include "client/local/local_sampler.h"
#include "client/local/local_text.h"
#include "client/local/work_pool.h"
#include "kernels/check.h"
#include "service/checks.h"
#include "service/clock.h"
#include "service/entropy.h"
#include "service/limits.h"
#include "service/wire/trace.h"

namespace sortition::client {
namespace {

// The parts that the streams of a connector share. A caller in Poll may hold a stream longer than its connector lives.
struct InProcessCore {
  InProcessCore(service::CheckpointKey checkpoint_key, uint32_t threads) : key(checkpoint_key), pool(threads) {}

  const service::CheckpointKey key;
  WorkPool pool;
};

// Results are reported at the end of their step, or after this time if the step takes longer.
constexpr absl::Duration kReportAfter = absl::Milliseconds(1);
// Opens go first: rows wait for them.
constexpr int32_t kOpenPriority = std::numeric_limits<int32_t>::max();

// Refuses a step as a whole, as a server does.
std::optional<service::Refusal> CheckStep(const LocalStep& step) {
  static const service::Limits limits;
  uint64_t rows = 0;
  for (const LocalRow& row : step.rows) rows += row.row.positions();
  const service::Bound most = service::Bounds(limits).max_step_positions();
  if (auto refusal = service::CheckCount(rows, most, "step.rows")) return refusal;
  if (auto refusal = service::CheckPriority(step.priority)) return refusal;
  if (step.traceparent.empty()) return std::nullopt;
  v1::TraceContext trace;
  trace.set_traceparent(step.traceparent);
  return service::CheckTrace(trace);
}

void SetCheckpoint(std::string checkpoint, RowResult* result) {
  if (auto* const draw = std::get_if<v1::DrawResult>(result)) draw->set_checkpoint(std::move(checkpoint));
  if (auto* const verify = std::get_if<v1::VerifyResult>(result)) verify->set_checkpoint(std::move(checkpoint));
  if (auto* const score = std::get_if<v1::ScoreResult>(result)) score->set_checkpoint(std::move(checkpoint));
}

// A sequence of a stream. A fork may read it while a row runs, and a step that was given up may still run.
struct Opened {
  absl::Mutex mutex;
  std::unique_ptr<LocalText> sequence ABSL_PT_GUARDED_BY(mutex);
};

class InProcessStream final : public Transport,
                              public Poller,
                              public LocalSampler,
                              public std::enable_shared_from_this<InProcessStream> {
 public:
  InProcessStream(std::shared_ptr<InProcessCore> core, uint64_t number, StreamEvents* events)
      : core_(std::move(core)), pool_(core_->pool), key_(core_->key), number_(number), events_(*events) {}

  LocalSampler* sampler() override { return this; }
  void Send(OutgoingMessage) override { SORTITION_CHECK(!"a message to a sampler in this process"); }
  // A caller that polls next samples the rows itself.
  void Flush(bool polls) override {
    if (!polls) pool_.Start();
  }
  std::shared_ptr<Poller> poller() override { return shared_from_this(); }
  void Poll(absl::FunctionRef<bool()> done, absl::FunctionRef<bool()>) override { pool_.Help(done); }
  void Cancel() override;
  TransportInUse in_use() override { return {.in_process = true, .note = ""}; }

  void Open(LocalOpen open) override;
  void Step(LocalStep step) override;
  void Drop(uint64_t batch_id) override { pool_.Remove(this, batch_id); }
  void Close(const SequenceRecord* record) override {
    std::shared_ptr<Opened> closed;  // destroyed without the lock
    absl::MutexLock lock(&mutex_);
    const auto node = sequences_.extract(record);
    if (!node.empty()) closed = node.mapped();
  }

  // Finds a sequence for jobs.
  std::shared_ptr<Opened> Find(const SequenceRecord* record) {
    absl::MutexLock lock(&mutex_);
    const auto it = sequences_.find(record);
    return it == sequences_.end() ? nullptr : it->second;
  }
  LocalOpenResult RunOpen(const LocalOpen& open);
  RowResult RunRow(Opened* opened, const LocalStep& step, uint32_t index);
  void Report(uint64_t batch_id, std::vector<LocalResult> results) {
    events_.OnLocalResults(number_, batch_id, std::move(results));
  }
  void ReportOpened(uint64_t epoch, LocalOpenResult result) {
    events_.OnLocalOpened(number_, epoch, std::move(result));
  }
  void End();

 private:
  absl::StatusOr<std::unique_ptr<LocalText>> MakeFork(const LocalOpen& open);
  service::CheckpointOwner OwnerOf(const LocalText& sequence, const SequenceRecord& record) const {
    return {"in-process", "", record.options.request_id, sequence.identity()};
  }

  const std::shared_ptr<InProcessCore> core_;
  WorkPool& pool_;
  const service::CheckpointKey& key_;
  const uint64_t number_;
  StreamEvents& events_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const SequenceRecord*, std::shared_ptr<Opened>> sequences_ ABSL_GUARDED_BY(mutex_);
};

class OpenJob final : public WorkPool::Job {
 public:
  OpenJob(std::shared_ptr<InProcessStream> stream, LocalOpen open)
      : Job(stream.get(), 0), stream_(std::move(stream)), open_(std::move(open)) {}
  void Run(uint32_t) override { stream_->ReportOpened(open_.epoch, stream_->RunOpen(open_)); }

 private:
  const std::shared_ptr<InProcessStream> stream_;
  const LocalOpen open_;
};

// A piece is a row.
class StepJob final : public WorkPool::Job {
 public:
  StepJob(std::shared_ptr<InProcessStream> stream, LocalStep step)
      : Job(stream.get(), step.batch_id),
        stream_(std::move(stream)),
        step_(std::move(step)),
        unfinished_(static_cast<uint32_t>(step_.rows.size())),
        reported_(service::SteadyClock().Now()) {
    sequences_.reserve(step_.rows.size());
    for (const LocalRow& row : step_.rows) sequences_.push_back(stream_->Find(row.record.get()));
    results_.reserve(step_.rows.size());
  }

  void Run(uint32_t piece) override {
    LocalResult result{piece, stream_->RunRow(sequences_[piece].get(), step_, piece)};
    std::vector<LocalResult> report;
    {
      absl::MutexLock lock(&mutex_);
      results_.push_back(std::move(result));
      const absl::Time now = service::SteadyClock().Now();
      if (--unfinished_ > 0 && now - reported_ < kReportAfter) return;
      // Released before the last report, so that the report ends the batch.
      if (unfinished_ == 0) step_.hold.reset();
      reported_ = now;
      report.swap(results_);
    }
    stream_->Report(step_.batch_id, std::move(report));
  }

 private:
  const std::shared_ptr<InProcessStream> stream_;
  LocalStep step_;
  std::vector<std::shared_ptr<Opened>> sequences_;  // one a row
  absl::Mutex mutex_;
  uint32_t unfinished_ ABSL_GUARDED_BY(mutex_);
  absl::Time reported_ ABSL_GUARDED_BY(mutex_);
  std::vector<LocalResult> results_ ABSL_GUARDED_BY(mutex_);  // not reported yet
};

// Refuses all rows of a step.
class RefusedStep final : public WorkPool::Job {
 public:
  RefusedStep(std::shared_ptr<InProcessStream> stream, const LocalStep& step, RowError error)
      : Job(stream.get(), step.batch_id),
        stream_(std::move(stream)),
        batch_id_(step.batch_id),
        rows_(static_cast<uint32_t>(step.rows.size())),
        error_(std::move(error)) {}
  void Run(uint32_t) override {
    std::vector<LocalResult> results;
    for (uint32_t row = 0; row < rows_; ++row) results.push_back({row, error_});
    stream_->Report(batch_id_, std::move(results));
  }

 private:
  const std::shared_ptr<InProcessStream> stream_;
  const uint64_t batch_id_;
  const uint32_t rows_;
  const RowError error_;
};

// The last event of a stream.
class EndJob final : public WorkPool::Job {
 public:
  explicit EndJob(std::shared_ptr<InProcessStream> stream) : Job(nullptr, 0), stream_(std::move(stream)) {}
  void Run(uint32_t) override { stream_->End(); }

 private:
  const std::shared_ptr<InProcessStream> stream_;
};

void InProcessStream::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
  }
  pool_.Remove(this, std::nullopt);
  pool_.Add(std::make_shared<EndJob>(shared_from_this()), 1, kOpenPriority);
  pool_.Start();
}

void InProcessStream::End() {
  absl::flat_hash_map<const SequenceRecord*, std::shared_ptr<Opened>> closed;
  {
    absl::MutexLock lock(&mutex_);
    closed.swap(sequences_);
  }
  events_.OnEnded(number_, absl::CancelledError("the stream was cancelled"));
}

void InProcessStream::Open(LocalOpen open) {
  pool_.Add(std::make_shared<OpenJob>(shared_from_this(), std::move(open)), 1, kOpenPriority);
}

void InProcessStream::Step(LocalStep step) {
  const int32_t priority = step.priority;
  const auto rows = static_cast<uint32_t>(step.rows.size());
  if (auto refusal = CheckStep(step)) {
    return pool_.Add(std::make_shared<RefusedStep>(shared_from_this(), step, ToRowError(*refusal)), 1, kOpenPriority);
  }
  pool_.Add(std::make_shared<StepJob>(shared_from_this(), std::move(step)), rows, priority);
}

absl::StatusOr<std::unique_ptr<LocalText>> InProcessStream::MakeFork(const LocalOpen& open) {
  const std::shared_ptr<Opened> parent = Find(open.parent.get());
  if (parent == nullptr) return absl::NotFoundError("the parent is closed");
  absl::MutexLock lock(&parent->mutex);
  return parent->sequence->Fork(open.record->in_force(), open.position);
}

LocalOpenResult InProcessStream::RunOpen(const LocalOpen& open) {
  std::unique_ptr<LocalText> sequence;
  if (open.parent != nullptr) {
    auto forked = MakeFork(open);
    // The client then opens it with its history, and learns from that why it is refused.
    if (!forked.ok()) {
      return RowError{absl::StatusCode::kFailedPrecondition, v1::HISTORY_REQUIRED, "fork", "",
                      std::string(forked.status().message())};
    }
    sequence = *std::move(forked);
  } else {
    auto opened =
        LocalText::OpenAt(open.record->in_force(), open.seed, {open.tokens, open.prompt_length, open.position});
    if (auto* const error = std::get_if<RowError>(&opened)) return std::move(*error);
    sequence = std::get<std::unique_ptr<LocalText>>(std::move(opened));
  }
  sequence->LeavePhrases();
  if (!open.checkpoint.empty() && sequence->keeps_sampler_state()) {
    auto checkpoint = key_.Open(OwnerOf(*sequence, *open.record), open.checkpoint, "checkpoint");
    if (const auto* refusal = std::get_if<service::Refusal>(&checkpoint)) return ToRowError(*refusal);
    sequence->SetSamplerState(std::get<service::Checkpoint>(checkpoint).sampler_state);
  }
  const LocalOpened answer{sequence->seed(), sequence->stateful(), sequence->history_hash().value_or(0), 0};
  auto opened = std::make_shared<Opened>();
  opened->sequence = std::move(sequence);
  absl::MutexLock lock(&mutex_);
  if (!ended_) opened.swap(sequences_[open.record.get()]);
  return answer;
}

RowResult InProcessStream::RunRow(Opened* opened, const LocalStep& step, uint32_t index) {
  const LocalRow& row = step.rows[index];
  SORTITION_CHECK(opened != nullptr);
  absl::MutexLock lock(&opened->mutex);
  LocalText& sequence = *opened->sequence;
  sequence.MoveTo(row.position, row.shared, row.appended);
  SORTITION_CHECK(sequence.history_hash().value_or(0) == row.history_hash);
  RowResult result = sequence.Step(step.dtype, row.row, {step.draft_dtype, index, step.vocabulary_size});
  if (sequence.keeps_sampler_state() && !std::holds_alternative<RowError>(result)) {
    SetCheckpoint(key_.Seal(OwnerOf(sequence, *row.record), sequence.last_checkpoint()), &result);
  }
  return result;
}

service::CheckpointKey TrustingKey() {
  service::SystemEntropy entropy;
  return service::CheckpointKey::Trusting(&entropy);
}

// Starts streams that are usable at once, without hello and welcome. Each begins without sequences.
class InProcessConnector final : public Connector {
 public:
  explicit InProcessConnector(uint32_t threads) : core_(std::make_shared<InProcessCore>(TrustingKey(), threads)) {}
  // Blocks until every stream has ended.
  ~InProcessConnector() override { core_->pool.Stop(); }

  std::shared_ptr<Transport> Start(size_t, uint64_t stream, StreamEvents* events) override {
    return CancelledWithLast(std::make_shared<InProcessStream>(core_, stream, events));
  }

 private:
  const std::shared_ptr<InProcessCore> core_;
};

}  // namespace

InProcess InProcessEngine(uint32_t threads) {
  return [threads] { return std::make_shared<InProcessConnector>(threads); };
}

}  // namespace sortition::client
