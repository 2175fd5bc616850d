// Callers of a simulated worker.
#include "tests/simulation/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/state_rows.h"
#include "tests/client/reference_sequence.h"
#include "tests/simulation/draw.h"

namespace sortition::simulation {
Worker::Worker(const World& world, uint32_t index, const PolicyFile& policies, Timeline* timeline, Network* network,
               Tally* tally, Log log, Fail fail)
    : world_(world),
      index_(index),
      rank_(world.ranks[index]),
      options_(world.ClientOf(index)),
      policies_(policies),
      timeline_(*timeline),
      network_(*network),
      tally_(*tally),
      log_(std::move(log)),
      fail_(std::move(fail)) {
  for (uint32_t i = 0; i < world_.sequences; ++i) {
    jobs_.push_back(Job::Make(world_.seed, rank_.worker * world_.sequences + i, rank_.count > 1));
  }
}

Worker::~Worker() = default;

void Worker::Start() {
  StartProcess(1);
  process_started_ = timeline_.Now();
  PlanThought();
}

void Worker::StartProcess(uint64_t generation) {
  process_ = Process::Start(options_, {absl::StrCat("worker ", rank_.worker), index_, world_.seed + index_, generation},
                            &network_, &timeline_);
}

bool Worker::Done() const {
  return std::ranges::all_of(jobs_, [](const auto& job) { return job->done; });
}

std::string Worker::NameOf(const Job& job) const {
  return absl::StrCat(world_.NameOf(index_), ", ", job.options.request_id);
}

Job* Worker::FindJob(uint32_t number) const {
  const auto it = std::ranges::find(jobs_, number, [](const auto& job) { return job->number; });
  return it == jobs_.end() ? nullptr : it->get();
}

// True while a rank lacks the answer to the text's last step or, for a fork, to the parent's step before it.
bool Worker::IsAhead(const Job& job) const {
  return std::ranges::any_of(peers_, [&](const Worker* peer) {
    const Job* const theirs = peer->FindJob(job.number);
    return theirs == nullptr || theirs->step < job.step;
  });
}

// Goes back to the answers that all ranks have. False if a shard of a later step may be under way: then no restart.
bool Worker::GoBackToPeers() {
  const auto is_ahead = [this](const auto& job) { return IsAhead(*job); };
  if (!rank_.in_step && std::ranges::any_of(jobs_, is_ahead)) return false;
  for (const auto& job : jobs_) {
    for (const Worker* const peer : peers_) {
      const Job* const theirs = peer->FindJob(job->number);
      if (theirs == nullptr || theirs->step >= job->step) continue;
      job->step = theirs->step;
      job->checkpoint = theirs->checkpoint;
      job->turns = theirs->turns;
      job->rewound = theirs->rewound;
      job->done = false;
    }
  }
  return true;
}

void Worker::Restart(absl::Duration zombie) {
  if (timeline_.Now() - process_started_ < absl::Microseconds(1) || !GoBackToPeers()) return;
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
    if (!job->done) job->StartAnew();
  }
  StartProcess(generation);
  PlanThought();
}

// True if no open, step or wait for other ranks is under way for the text.
bool Worker::IsFree(const Job& job) const {
  return !job.done && !job.busy && !job.opening && !(rank_.in_step && IsAhead(job));
}

// Plans no thought while all texts wait for answers.
void Worker::PlanThought() {
  const auto is_free = [this](const auto& job) { return IsFree(*job); };
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
  // A batch ends with its last row. With larger batches two ranks could wait for each other's rows, so ranks that may
  // be ahead have batches of one row.
  const size_t most = rank_.count > 1 && !rank_.in_step ? 1 : 3;
  for (const auto& job : jobs_) {
    if (!IsFree(*job)) continue;
    if (!job->open) {
      if (draws.OneIn(2)) Open(job.get());
    } else if (ready.size() < most && !draws.OneIn(3)) {
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
  const bool silence = may_miss_deadlines_ && (absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status));
  if (!status.ok() && EndsByPolicy(*job, std::string(status.message()))) return EndJob(job);
  if (!status.ok() && !silence) {
    return fail_(absl::StrCat(NameOf(*job), " could not be opened: ", status.ToString()));
  }
  job->opening = false;
  if (silence) return PlanThought();
  job->open = true;
  PlanThought();
  if (job->text == nullptr) BeginText(job);
}

// The text follows from the seed and the policy that the service has stated.
void Worker::BeginText(Job* job) {
  const client::SequenceRecord& record = *job->record;
  {
    absl::MutexLock lock(&job->record->mutex);
    // The process that continues the text has to name the seed.
    job->options.seed = record.seed;
  }
  job->policy = record.policy;
  client::SequenceOptions in_force = job->options;
  in_force.parameters = record.in_force().parameters;
  if (rank_.count == 1) {
    job->rules = policies_.Find(job->options.parameters, record.policy);
    if (job->rules == nullptr) {
      return fail_(absl::StrCat(NameOf(*job), ": no policy does this: ", record.policy.ShortDebugString()));
    }
    in_force.parameters = job->rules->Apply(job->options.parameters, "")->parameters;
    if (!record.policy.watermark_key_id().empty()) ++tally_.marked_texts;
    if (record.policy.has_applied()) ++tally_.bounded_texts;
  }
  job->text = std::make_unique<Text>(world_.seed, job->number, in_force, job->start);
}

// True if the operator's changed policy would change the text's tokens.
bool Worker::EndsByPolicy(const Job& job, std::string_view why) const {
  if (job.rules == nullptr || why.find("operator's policy") == std::string_view::npos) return false;
  return policies_.MayEnd(*job.rules, job.record->in_force().parameters, job.policy->watermark_key_id());
}

void Worker::EndJob(Job* job) {
  ++tally_.ended_texts;
  job->opening = job->busy = false;
  FinishJob(job);
  PlanThought();
}

void Worker::Submit(std::vector<Job*> jobs, uint64_t number) {
  auto batch = std::make_shared<client::PendingBatch>();
  batch->dtype = v1::DTYPE_BF16;
  batch->vocabulary_size = kVocabulary;
  batch->row_bytes = 2 * (options_.shard ? options_.shard->tokens : kVocabulary);
  batch->is_shard = options_.shard.has_value();
  if (options_.shard) batch->first_token = options_.shard->first_token;
  const bool hurried = Draw(world_.seed, Choice::kThought, {index_, number}) % 10 == 0;
  batch->deadline = timeline_.Now() + (hurried ? world_.max_latency : world_.client.default_timeout);
  std::vector<std::pair<Job*, uint32_t>> asked;
  for (Job* job : jobs) {
    if (!job->ApplyRewrites()) return fail_(absl::StrCat(NameOf(*job), ": an rewrite was refused"));
    const TextStep& step = job->text->step(job->step);
    client::PendingRow& row = batch->rows.emplace_back();
    row.record = job->record;
    row.row.logits = job->Logits(options_.shard);
    row.row.draw_salt = step.draw_salt;
    if (!step.allowed_bits.empty()) row.row.allowed_bits = step.allowed_bits.data();
    if (!step.drafts.empty()) row.row.drafts = &step.verification;
    row.row.banned_tokens = step.banned;
    row.row.scored = step.scored;
    Draws forms(world_.seed, Choice::kThought, {index_, number, job->number});
    if (forms.OneIn(3)) client::StateRow(*batch, forms.Between(1, kVocabulary), &row);
    job->busy = true;
    asked.emplace_back(job, job->step);
  }
  batch->done = [this, asked, hurried, generation = process_->generation(),
                 told = false](std::vector<client::RowResult> outcomes) mutable {
    if (std::exchange(told, true) || outcomes.size() != asked.size()) return fail_("a batch was answered twice");
    for (size_t i = 0; i < asked.size(); ++i) {
      OnOutcome(asked[i].first, generation, asked[i].second, hurried, outcomes[i]);
    }
  };
  process_->Update([&](client::StreamState& state, absl::Time now) { state.Submit(std::move(batch), now); });
}

void Worker::Count(const TextStep& step, const client::RowResult& outcome) {
  if (const auto* verify = std::get_if<v1::VerifyResult>(&outcome)) {
    tally_.accepted_drafts += verify->accepted();
    if (step.verification.mode == v1::VERIFY_MODE_REJECTION) tally_.tested_drafts += verify->accepted();
    if (step.verification.mode == v1::VERIFY_MODE_BLOCK) tally_.block_drafts += verify->accepted();
  }
  tally_.scored_tokens += step.scored.size();
  if (step.rewound_to) ++tally_.rewinds;
  if (!step.banned.empty()) ++tally_.banned_rows;
  if (step.answer.find(" phase ") != std::string::npos) ++tally_.phase_tokens;
}

void Worker::OnOutcome(Job* job, uint64_t generation, uint32_t step, bool hurried, const client::RowResult& outcome) {
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
    if (error.reason == v1::CONTRADICTION && EndsByPolicy(*job, error.message)) return EndJob(job);
    // A step that has passed its deadline may get the reason instead.
    const bool is_of_ranks = rank_.index > 0 && (error.reason == v1::STEP_CANCELLED || error.reason == v1::SUPERSEDED);
    const bool fair = (hurried || may_miss_deadlines_) &&
                      (error.reason == v1::DEADLINE_PASSED || error.reason == v1::OVERLOADED ||
                       error.reason == v1::STEP_IN_FLIGHT || error.reason == v1::DEVICE_FAILED || is_of_ranks);
    if (!fair) return fail_(absl::StrCat(NameOf(*job), ", step ", step, ": ", client::Describe(error)));
    ++tally_.missed_deadlines;
    return;
  }
  Count(job->text->step(step), outcome);
  if (answer->find(" end 2") != std::string::npos) ++tally_.repetitions;
  ++tally_.tokens;
  if (rank_.count > 1) ++tally_.rank_tokens;
  ++job->step;
  job->rewritten = false;
  const std::vector<uint32_t>& right =
      job->step < job->text->steps() ? job->text->step(job->step).tokens : job->text->tokens();
  {
    absl::MutexLock lock(&job->record->mutex);
    const client::History& history = job->record->history;
    job->checkpoint = job->record->checkpoint;
    job->turns = history.turns();
    job->rewound = history.rewinds().all();
    if (!job->checkpoint.empty()) ++tally_.checkpoints;
    if (history.position() != right.size() || (history.keeps_tokens() && history.tokens() != right)) {
      return fail_(absl::StrCat(NameOf(*job), ": after step ", step, " the client's text is not the right one"));
    }
  }
  if (job->fork && job->fork->step == job->step) jobs_.push_back(job->Fork());
  if (job->step == job->text->steps()) FinishJob(job);
  for (Worker* const peer : peers_) peer->PlanThought();
}

// Ranks close a text together, because an answer that only closed ranks have would be lost with the server.
void Worker::FinishJob(Job* job) {
  job->done = true;
  std::vector<Worker*> all = peers_;
  all.push_back(this);
  const auto is_done = [&](const Worker* rank) {
    const Job* const theirs = rank->FindJob(job->number);
    return theirs != nullptr && theirs->done;
  };
  if (!std::ranges::all_of(all, is_done)) return;
  for (Worker* const rank : all) rank->CloseJob(*rank->FindJob(job->number));
}

void Worker::CloseJob(const Job& job) {
  // Later, because this runs in a callback of the state.
  timeline_.After(absl::ZeroDuration(), [this, record = job.record] {
    process_->Update([&](client::StreamState& state, absl::Time) { state.Close(record.get()); });
  });
}

}  // namespace sortition::simulation
