// Streams: the times and messages of their steps, and the counting of answers.
#include "client/bench/load.h"

#include <sys/prctl.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/check.h"
#include "sortition/errors.h"

namespace sortition::bench {
namespace {

constexpr size_t kPoolRows = 64;  // different rows, which steps take in turn
constexpr absl::Duration kPauseWithoutText = absl::Milliseconds(20);

kernels::DType ToDType(v1::DType dtype) {
  if (dtype == v1::DTYPE_F32) return kernels::DType::kF32;
  return dtype == v1::DTYPE_F16 ? kernels::DType::kF16 : kernels::DType::kBF16;
}

uint64_t Nanoseconds(Load::Clock::duration time) {
  return static_cast<uint64_t>(
      std::max<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(), 0));
}

Load::Clock::duration Chrono(absl::Duration time) {
  return std::chrono::duration_cast<Load::Clock::duration>(absl::ToChronoNanoseconds(time));
}

// Returns the time of a service::SteadyClock.
absl::Time Steady(Load::Clock::time_point time) {
  return absl::UnixEpoch() + absl::FromChrono(time.time_since_epoch());
}

}  // namespace

uint64_t Tally::refused_rows() const {
  uint64_t sum = 0;
  for (const auto& [reason, rows] : refused) sum += rows;
  return sum;
}

void Tally::Merge(const Tally& other) {
  steps += other.steps;
  rows += other.rows;
  tokens += other.tokens;
  for (const auto& [reason, refusals] : other.refused) refused[reason] += refusals;
  lost += other.lost;
  unsent += other.unsent;
  if (first_refusal.empty()) first_refusal = other.first_refusal;
  latency.Merge(other.latency);
  undisturbed.Merge(other.undisturbed);
}

// One client, its texts and its thread.
class Load::Stream {
 public:
  Stream(const LoadOptions& options, const Logits& pool, uint32_t number)
      : options_(options), pool_(pool), number_(number), texts_(options.step_rows) {}

  ~Stream() {
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Connect() {
    client::ClientOptions connection = options_.connection;
    auto& targets = connection.targets;
    std::rotate(targets.begin(), targets.begin() + number_ % targets.size(), targets.end());
    auto client = client::Client::Connect(std::move(connection));
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    for (uint32_t row = 0; row < texts_.size(); ++row) {
      if (absl::Status opened = Open(row); !opened.ok()) return opened;
    }
    return absl::OkStatus();
  }

  // Steps are due from `first` to `end`.
  void Start(Clock::time_point first, Clock::time_point measured_from, Clock::time_point end) {
    measured_from_ = measured_from;
    {
      const absl::MutexLock lock(&mutex_);
      end_ = end;
    }
    thread_ = std::thread([this, first] { Run(first); });
  }

  void Stop() {
    const absl::MutexLock lock(&mutex_);
    end_ = std::min(end_, Clock::now());
    stopped_ = true;
  }

  bool Wait(absl::Time deadline) {
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithDeadline(absl::Condition(&done_), deadline);
  }

  Tally Read() const {
    const absl::MutexLock lock(&mutex_);
    return tally_;
  }

  client::TransportInUse transport() const { return client_->transport_in_use(); }

 private:
  struct Measured {
    Clock::time_point busy_since;  // the begin of the first of the steps that waited for each other
    Clock::time_point begin;
    Clock::time_point end;
  };
  struct Text {
    std::unique_ptr<client::Sequence> sequence;
    uint32_t begun_at = 0;  // its first position
    uint32_t number = 0;    // among the texts in its place
  };

  absl::Status Open(uint32_t row) {
    Text& text = texts_[row];
    text.sequence.reset();  // the server forgets it
    client::SequenceOptions options = options_.text;
    const uint64_t place = uint64_t{number_} * texts_.size() + row;
    options.request_id = absl::StrCat("bench-", place, "-", text.number);
    if (options.seed) *options.seed += uint64_t{text.number} * options_.streams * texts_.size() + place;
    auto opened = client_->Open(std::move(options));
    if (!opened.ok()) return opened.status();
    text.sequence = *std::move(opened);
    text.begun_at = text.sequence->position();
    ++text.number;
    return absl::OkStatus();
  }

  void Run(Clock::time_point first) {
    prctl(PR_SET_TIMERSLACK, 1);  // a due step is not sent later for fewer wake-ups
    const Clock::duration interval =
        options_.rate ? Chrono(absl::Seconds(options_.streams / *options_.rate)) : Clock::duration::zero();
    Clock::time_point due = first;
    for (uint64_t step = 0;; ++step) {
      if (!WaitUntil(due)) break;
      const absl::Duration pause = Step(step, options_.rate ? std::optional(due) : std::nullopt);
      due = options_.rate ? due + interval : Clock::now() + Chrono(pause);
    }
    {
      const absl::MutexLock lock(&mutex_);
      if (options_.rate) CountUnsent(due, interval);
    }
    if (options_.control != nullptr) options_.control->AwaitPast(Steady(Clock::now()));
    const absl::MutexLock lock(&mutex_);
    Judge();
    done_ = true;
  }

  // Adds the latency of a step.
  void AddLatency(Clock::time_point begin, Clock::time_point end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (begin >= busy_until_) busy_since_ = begin;
    busy_until_ = end;
    if (begin < measured_from_) return;
    tally_.latency.Add(Nanoseconds(end - begin));
    if (options_.control != nullptr) unjudged_.push_back({busy_since_, begin, end});
  }

  // Judges the steps of which the control knows all hiccups.
  void Judge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (unjudged_.empty()) return;
    const service::HiccupControl& control = *options_.control;
    for (const absl::Time past = control.past(); !unjudged_.empty(); unjudged_.pop_front()) {
      const Measured& step = unjudged_.front();
      if (Steady(step.end) >= past) return;
      if (control.hiccups().Within(Steady(step.busy_since), Steady(step.end)) > absl::ZeroDuration()) continue;
      tally_.undisturbed.Add(Nanoseconds(step.end - step.begin));
    }
  }

  void CountUnsent(Clock::time_point due, Clock::duration interval) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Clock::time_point now = Clock::now(); due < end_; due += interval) {
      ++tally_.unsent;
      AddLatency(due, now);
    }
  }

  // Returns false if the load ends before `due`.
  bool WaitUntil(Clock::time_point due) {
    const absl::MutexLock lock(&mutex_);
    const auto now = Clock::now();
    if (due > now && due < end_) mutex_.AwaitWithTimeout(absl::Condition(&stopped_), absl::FromChrono(due - now));
    return std::max(due, Clock::now()) < end_;
  }

  // Sends a step of every text's next row. Returns for how long refusals ask to wait.
  absl::Duration Step(uint64_t step, std::optional<Clock::time_point> due);

  // Counts a row's answer. `before` is the text's position before the step.
  void Count(const client::RowResult& result, const client::Sequence& sequence, uint32_t before)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Refuse(v1::ErrorReason reason, const std::string& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++tally_.refused[reason];
    if (tally_.first_refusal.empty()) tally_.first_refusal = text;
  }

  const LoadOptions& options_;
  const Logits& pool_;
  const uint32_t number_;
  std::unique_ptr<client::Client> client_;
  std::vector<Text> texts_;
  Clock::time_point measured_from_;
  mutable absl::Mutex mutex_;
  Clock::time_point end_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  Tally tally_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point busy_since_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point busy_until_ ABSL_GUARDED_BY(mutex_);
  std::deque<Measured> unjudged_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

absl::Duration Load::Stream::Step(uint64_t step, std::optional<Clock::time_point> due) {
  client::Batch batch{options_.dtype, pool_.vocabulary(), {}};
  std::vector<uint32_t> before;
  absl::Duration pause = absl::ZeroDuration();
  for (uint32_t row = 0; row < texts_.size(); ++row) {
    Text& text = texts_[row];
    if (text.sequence == nullptr || text.sequence->position() >= text.begun_at + options_.text_tokens) {
      if (absl::Status opened = Open(row); !opened.ok()) {
        const auto error = client::ErrorOf(opened);
        const absl::MutexLock lock(&mutex_);
        ++tally_.rows;
        Refuse(error ? error->reason : v1::ERROR_REASON_UNSPECIFIED, std::string(opened.message()));
        pause = kPauseWithoutText;
        continue;
      }
    }
    const size_t from = (step * texts_.size() + row + number_) % pool_.count();
    batch.rows.push_back({text.sequence.get(), pool_.row(from)});
    before.push_back(text.sequence->position());
  }
  if (batch.rows.empty()) return pause;
  {
    const absl::MutexLock lock(&mutex_);
    tally_.rows += batch.rows.size();
  }
  const Clock::time_point called = Clock::now();
  const auto results = client_->Step(batch);
  const Clock::time_point answered = Clock::now();
  SORTITION_CHECK(results.ok());  // an invalid batch, which this one is not
  const absl::MutexLock lock(&mutex_);
  ++tally_.steps;
  tally_.lost += batch.rows.size() - std::min(results->size(), batch.rows.size());
  for (size_t i = 0; i < std::min(results->size(), batch.rows.size()); ++i) {
    Count((*results)[i], *batch.rows[i].sequence, before[i]);
    if (const auto* error = std::get_if<client::RowError>(&(*results)[i])) pause = std::max(pause, error->retry_after);
  }
  AddLatency(due.value_or(called), answered);
  Judge();
  return pause;
}

void Load::Stream::Count(const client::RowResult& result, const client::Sequence& sequence, uint32_t before) {
  if (const auto* error = std::get_if<client::RowError>(&result)) {
    Refuse(error->reason, client::Describe(*error));
    return;
  }
  const auto* const draw = std::get_if<v1::DrawResult>(&result);
  if (draw == nullptr) {
    ++tally_.lost;
    return;
  }
  const uint32_t position = draw->has_rewind() ? draw->rewind().position() : before + 1;
  ++(sequence.position() == position ? tally_.tokens : tally_.lost);
}

Load::Load(LoadOptions options)
    : options_(std::move(options)),
      pool_(Shape::kPeaked, ToDType(options_.dtype), kPoolRows, options_.text.vocabulary_size) {}

Load::~Load() { Stop(); }

absl::StatusOr<std::unique_ptr<Load>> Load::Start(LoadOptions options) {
  SORTITION_CHECK(options.streams > 0 && options.step_rows > 0 && !options.connection.targets.empty());
  SORTITION_CHECK(!options.rate || *options.rate > 0);
  std::unique_ptr<Load> load(new Load(std::move(options)));
  for (uint32_t i = 0; i < load->options_.streams; ++i) {
    load->streams_.push_back(std::make_unique<Stream>(load->options_, load->pool_, i));
    if (absl::Status connected = load->streams_.back()->Connect(); !connected.ok()) return connected;
  }
  const Clock::time_point start = Clock::now();
  load->measured_from_ = start + Chrono(load->options_.warm_up);
  const Clock::time_point end = load->measured_from_ + Chrono(load->options_.duration);
  for (uint32_t i = 0; i < load->options_.streams; ++i) {
    const absl::Duration shift = load->options_.rate ? absl::Seconds(i / *load->options_.rate) : absl::ZeroDuration();
    load->streams_[i]->Start(start + Chrono(shift), load->measured_from_, end);
  }
  return load;
}

Tally Load::Read() const {
  Tally tally;
  for (const auto& stream : streams_) tally.Merge(stream->Read());
  return tally;
}

client::TransportInUse Load::transport() const { return streams_.front()->transport(); }

void Load::Stop() {
  for (const auto& stream : streams_) stream->Stop();
}

bool Load::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  return std::all_of(streams_.begin(), streams_.end(), [&](const auto& stream) { return stream->Wait(deadline); });
}

}  // namespace sortition::bench
