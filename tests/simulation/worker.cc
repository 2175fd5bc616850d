// Callers of a simulated worker, and its processes.
#include "tests/simulation/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/client/reference_sequence.h"
#include "tests/simulation/draw.h"

namespace sortition::simulation {
namespace {

// Numbers of forks, apart from those of all other sequences.
constexpr uint32_t kFirstChild = 1000;

}  // namespace

// One life of the client: its state machine, its timer, and what has ended and waits to be told.
class Worker::Process final : public client::StreamEvents, public std::enable_shared_from_this<Process> {
 public:
  static std::shared_ptr<Process> Start(Worker* worker, uint64_t generation) {
    auto process = std::make_shared<Process>(worker, generation);
    process->Begin();
    return process;
  }
  Process(Worker* worker, uint64_t generation)
      : worker_(*worker), timeline_(worker->timeline_), generation_(generation) {}
  ~Process() override { Stop(); }

  uint64_t generation() const { return generation_; }

  // Runs `change` on the state, then tells what ended by it and sets the timer.
  template <typename Change>
  void Update(Change change) {
    if (stopped_) return;
    change(*state_, timeline_.Now());
    Settle();
  }
  // Dies; what it had in flight is not heard of again.
  void Stop() {
    if (std::exchange(stopped_, true)) return;
    state_->Stop();
    state_->TakeFinished();
    released_.clear();
  }

  void OnResponse(uint64_t stream, v1::StreamResponse response) override {
    Update([&](client::StreamState& state, absl::Time now) { state.OnResponse(stream, response, now); });
  }
  void OnEnded(uint64_t stream, absl::Status status) override {
    Update([&](client::StreamState& state, absl::Time now) { state.OnEnded(stream, status, now); });
  }

 private:
  void Begin() {
    connector_ = worker_.network_.ConnectorOf(worker_.index_, weak_from_this());
    client::StreamState::Environment environment;
    environment.connector = connector_.get();
    environment.events = this;
    environment.first_epoch = static_cast<uint64_t>(absl::ToUnixMicros(timeline_.Now())) << 8 | generation_;
    environment.jitter_seed = worker_.world_.seed + worker_.index_;
    environment.released = [this](std::shared_ptr<client::PendingBatch> batch) {
      released_.push_back(std::move(batch));
      timeline_.After(absl::ZeroDuration(), [self = weak_from_this()] {
        if (const auto alive = self.lock()) alive->Settle();
      });
    };
    state_.emplace(worker_.world_.client, absl::StrCat("worker ", worker_.index_), std::move(environment));
    Update([](client::StreamState& state, absl::Time now) { state.Start(now); });
  }

  void Settle() {
    Tell();
    if (stopped_) return;
    const absl::Time next = state_->next_event(timeline_.Now());
    if (next >= wake_at_ || next == absl::InfiniteFuture()) return;
    wake_at_ = next;
    // A microsecond on, so that a time that has come has passed.
    timeline_.At(std::max(next, timeline_.Now() + absl::Microseconds(1)), [self = weak_from_this(), next] {
      const auto alive = self.lock();
      if (alive == nullptr || alive->wake_at_ != next) return;
      alive->wake_at_ = absl::InfiniteFuture();
      alive->Update([](client::StreamState& state, absl::Time now) { state.OnTime(now); });
    });
  }

  void Tell() {
    client::StreamState::Finished finished = state_->TakeFinished();
    for (auto& batch : std::exchange(released_, {})) finished.batches.push_back(std::move(batch));
    for (auto& open : finished.opens) std::move(open->done)(std::move(open->outcome));
    for (auto& batch : finished.batches) batch->Finish();
  }

  Worker& worker_;
  Timeline& timeline_;
  const uint64_t generation_;
  std::unique_ptr<client::Connector> connector_;
  std::vector<std::shared_ptr<client::PendingBatch>> released_;
  std::optional<client::StreamState> state_;
  absl::Time wake_at_ = absl::InfiniteFuture();
  bool stopped_ = false;
};

// One text and how far it has come.
struct Worker::Job {
  uint32_t number = 0;  // of the sequence, unique in the world
  client::SequenceOptions options;
  std::shared_ptr<client::SequenceRecord> record;  // of the current process
  std::unique_ptr<Text> text;                      // once the seed is known
  uint32_t step = 0;                               // the next one
  bool opening = false;
  bool open = false;
  bool busy = false;
  bool edited = false;  // the step's edits have been made
  bool done = false;
  std::optional<ForkPlan> fork;  // still to be made
};

Worker::Worker(const World& world, uint32_t index, Timeline* timeline, Network* network, Tally* tally, Log log,
               Fail fail)
    : world_(world),
      index_(index),
      timeline_(*timeline),
      network_(*network),
      tally_(*tally),
      log_(std::move(log)),
      fail_(std::move(fail)) {
  for (uint32_t i = 0; i < world_.sequences; ++i) {
    auto job = std::make_unique<Job>();
    job->number = index_ * world_.sequences + i;
    job->options = OptionsOf(world_.seed, job->number);
    job->record = std::make_shared<client::SequenceRecord>(job->options);
    job->fork = ForkOf(world_.seed, job->number);
    jobs_.push_back(std::move(job));
  }
}

Worker::~Worker() = default;

void Worker::Start() {
  process_ = Process::Start(this, 1);
  process_started_ = timeline_.Now();
  PlanThought();
}

bool Worker::Done() const {
  return std::ranges::all_of(jobs_, [](const auto& job) { return job->done; });
}

std::string Worker::NameOf(const Job& job) const {
  return absl::StrCat("worker ", index_, ", ", job.options.request_id);
}

void Worker::Restart(absl::Duration zombie) {
  if (timeline_.Now() - process_started_ < absl::Microseconds(1)) return;
  process_started_ = timeline_.Now();
  const uint64_t generation = process_->generation() + 1;
  if (zombie > absl::ZeroDuration()) {
    zombies_.push_back(process_);
    timeline_.After(zombie, [zombie = std::weak_ptr(process_)] {
      if (const auto alive = zombie.lock()) alive->Stop();
    });
  } else {
    process_->Stop();
  }
  for (const auto& job : jobs_) {
    if (job->done) continue;
    client::SequenceOptions options = job->options;
    std::vector<uint32_t> output;
    if (job->text != nullptr) {
      const TextStep& step = job->text->step(job->step);
      options.prompt.assign(step.tokens.begin(), step.tokens.begin() + step.prompt_length);
      output.assign(step.tokens.begin() + step.prompt_length, step.tokens.end());
    }
    job->opening = job->open = job->busy = job->edited = false;
    job->record = std::make_shared<client::SequenceRecord>(std::move(options));
    absl::MutexLock lock(&job->record->mutex);
    job->record->history.Append(output);
  }
  process_ = Process::Start(this, generation);
  PlanThought();
}

// A text that nothing is under way for.
bool Worker::IsFree(const Job& job) { return !job.done && !job.busy && !job.opening; }

// There is nothing to think about while all texts wait for answers.
void Worker::PlanThought() {
  const auto is_free = [](const auto& job) { return IsFree(*job); };
  if (thinking_ || std::ranges::none_of(jobs_, is_free)) return;
  thinking_ = true;
  const uint64_t share = Draw(world_.seed, Choice::kPause, {index_, thoughts_}) % 1000;
  timeline_.After(world_.max_thought * share / 1000, [this] {
    thinking_ = false;
    Think();
  });
}

void Worker::Think() {
  Draws draws(world_.seed, Choice::kBatch, {index_, ++thoughts_});
  std::vector<Job*> ready;
  for (const auto& job : jobs_) {
    if (!IsFree(*job)) continue;
    if (!job->open) {
      if (draws.OneIn(2)) Open(job.get());
    } else if (ready.size() < 3 && !draws.OneIn(3)) {
      ready.push_back(job.get());
    }
  }
  if (!ready.empty()) Submit(std::move(ready), thoughts_);
  PlanThought();
}

void Worker::Open(Job* job) {
  job->opening = true;
  auto open = std::make_unique<client::PendingOpen>();
  open->record = job->record;
  open->deadline = timeline_.Now() + world_.client.default_timeout;
  open->done = [this, job, generation = process_->generation()](absl::Status status) {
    OnOpened(job, generation, status);
  };
  process_->Update([&](client::StreamState& state, absl::Time now) { state.Open(std::move(open), now); });
}

void Worker::OnOpened(Job* job, uint64_t generation, const absl::Status& status) {
  if (generation != process_->generation()) return;
  if (!status.ok()) return fail_(absl::StrCat(NameOf(*job), " could not be opened: ", status.ToString()));
  job->opening = false;
  job->open = true;
  PlanThought();
  if (job->text != nullptr) return;
  uint64_t seed;
  {
    absl::MutexLock lock(&job->record->mutex);
    seed = job->record->seed;
  }
  // Whoever goes on with the text has to name the seed.
  job->options.seed = seed;
  job->text = std::make_unique<Text>(world_.seed, job->number, job->options, seed);
}

// False if a cut had nothing to cut, which would be a defect of the history.
bool Worker::ApplyEdits(Job* job) {
  if (std::exchange(job->edited, true)) return true;
  const TextStep& step = job->text->step(job->step);
  absl::MutexLock lock(&job->record->mutex);
  if (step.truncate_to && !job->record->history.Truncate(*step.truncate_to).ok()) return false;
  if (!step.append.empty()) job->record->history.Append(step.append);
  return true;
}

void Worker::Submit(std::vector<Job*> jobs, uint64_t number) {
  auto batch = std::make_shared<client::PendingBatch>();
  batch->dtype = v1::DTYPE_BF16;
  batch->vocabulary_size = kVocabulary;
  batch->row_bytes = 2 * kVocabulary;
  const bool hurried = Draw(world_.seed, Choice::kThought, {index_, number}) % 10 == 0;
  batch->deadline = timeline_.Now() + (hurried ? world_.max_latency : world_.client.default_timeout);
  std::vector<std::pair<Job*, uint32_t>> asked;
  for (Job* job : jobs) {
    if (!ApplyEdits(job)) return fail_(absl::StrCat(NameOf(*job), ": an edit was refused"));
    const TextStep& step = job->text->step(job->step);
    client::PendingRow& row = batch->rows.emplace_back();
    row.record = job->record;
    row.row.logits = step.logits.data();
    row.row.draw_salt = step.draw_salt;
    if (!step.allowed_bits.empty()) row.row.allowed_bits = step.allowed_bits.data();
    if (!step.drafts.empty()) row.row.drafts = &step.verification;
    job->busy = true;
    asked.emplace_back(job, job->step);
  }
  batch->done = [this, asked, hurried, generation = process_->generation(),
                 told = false](std::vector<client::RowOutcome> outcomes) mutable {
    if (std::exchange(told, true) || outcomes.size() != asked.size()) return fail_("a batch was answered twice");
    for (size_t i = 0; i < asked.size(); ++i) {
      OnOutcome(asked[i].first, generation, asked[i].second, hurried, outcomes[i]);
    }
  };
  process_->Update([&](client::StreamState& state, absl::Time now) { state.Submit(std::move(batch), now); });
}

void Worker::OnOutcome(Job* job, uint64_t generation, uint32_t step, bool hurried, const client::RowOutcome& outcome) {
  const std::optional<std::string> answer = testing::Bits(outcome);
  if (answer && *answer != job->text->step(step).answer) {
    return fail_(
        absl::StrCat(NameOf(*job), ", step ", step, ": ", *answer, " instead of ", job->text->step(step).answer));
  }
  if (generation != process_->generation()) {
    if (answer) ++tally_.zombie_tokens;
    return;
  }
  job->busy = false;
  PlanThought();
  if (!answer) {
    const client::RowError& error = std::get<client::RowError>(outcome);
    // A step in a hurry may learn what stood in its way.
    const bool fair = hurried && (error.reason == v1::DEADLINE_PASSED || error.reason == v1::OVERLOADED ||
                                  error.reason == v1::STEP_IN_FLIGHT || error.reason == v1::DEVICE_FAILED);
    if (!fair) return fail_(absl::StrCat(NameOf(*job), ", step ", step, ": ", client::Describe(error)));
    ++tally_.missed_deadlines;
    return;
  }
  if (const auto* verify = std::get_if<v1::VerifyResult>(&outcome)) tally_.accepted_drafts += verify->accepted();
  ++tally_.tokens;
  ++job->step;
  job->edited = false;
  const std::vector<uint32_t>& right =
      job->step < job->text->steps() ? job->text->step(job->step).tokens : job->text->tokens();
  {
    absl::MutexLock lock(&job->record->mutex);
    const client::History& history = job->record->history;
    if (history.position() != right.size() || (history.keeps_tokens() && history.tokens() != right)) {
      return fail_(absl::StrCat(NameOf(*job), ": after step ", step, " the client's text is not the right one"));
    }
  }
  if (job->fork && job->fork->step == job->step) Fork(job);
  if (job->step == job->text->steps()) FinishJob(job);
}

// A second completion of the same text goes on from some place in it.
void Worker::Fork(Job* parent) {
  const ForkPlan plan = *std::exchange(parent->fork, std::nullopt);
  auto child = std::make_unique<Job>();
  child->number = parent->number + kFirstChild;
  child->options = parent->options;
  child->options.request_id += " fork";
  child->options.choice_index += 5;
  const TextStep& now = parent->text->step(parent->step);
  const uint32_t position = static_cast<uint32_t>(now.tokens.size() * plan.percent / 100);
  const std::vector<uint32_t> tokens(now.tokens.begin(), now.tokens.begin() + position);
  const uint32_t prompt_length = std::min(now.prompt_length, position);
  child->text =
      std::make_unique<Text>(world_.seed, child->number, child->options, *child->options.seed, tokens, prompt_length);
  child->options.prompt.assign(tokens.begin(), tokens.begin() + prompt_length);
  child->record = std::make_shared<client::SequenceRecord>(child->options);
  child->record->origin = client::SequenceRecord::Origin{parent->record, position};
  {
    absl::MutexLock lock(&child->record->mutex);
    child->record->history.Append(std::span(tokens).subspan(prompt_length));
  }
  jobs_.push_back(std::move(child));
}

void Worker::FinishJob(Job* job) {
  job->done = true;
  // Not from within the state's own callback.
  timeline_.After(absl::ZeroDuration(), [this, record = job->record] {
    process_->Update([&](client::StreamState& state, absl::Time) { state.Close(record.get()); });
  });
}

}  // namespace sortition::simulation
