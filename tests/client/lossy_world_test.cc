// State can be lost, tokens cannot: texts sampled in a world of faults are those of the plain reference, token by
// token.
#include "tests/client/lossy_world.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/support/scale.h"

namespace sortition::testing {
namespace {

constexpr uint32_t kVocabulary = 40;
constexpr uint32_t kTokens = 16;

// One sequence of the client, its reference, and the row that is in flight.
struct Worker {
  std::shared_ptr<client::SequenceRecord> record;
  std::unique_ptr<ReferenceSequence> reference;
  bool open = false;
  bool busy = false;
  std::vector<std::byte> row;
  uint32_t drawn = 0;
};

class LossyRun {
 public:
  explicit LossyRun(uint64_t seed)
      : world_(2, Limits(), seed),
        state_(options_, "worker",
               {&world_, nullptr, /*first_epoch=*/1, seed,
                [this](std::shared_ptr<client::PendingBatch> batch) { released_.push_back(batch); }}) {
    world_.Attach(&state_);
    state_.Start(world_.now());
    for (int i = 0; i < 5; ++i) workers_.push_back(MakeWorker(i));
  }

  // False if the world stands still.
  bool Run() {
    for (int i = 0; i < 60000; ++i) {
      if (Done()) return true;
      world_.Step(/*faults=*/i < 6000);
      Collect();
      if (world_.random()() % 4 == 0) Act();
      if (::testing::Test::HasFatalFailure()) return false;
    }
    return false;
  }

  const LossyWorld::Faults& faults() const { return world_.faults(); }
  uint64_t missed_deadlines() const { return missed_deadlines_; }

 private:
  // Small, so that histories are evicted and cuts reach below what is kept.
  static service::Limits Limits() {
    service::Limits limits;
    limits.max_sequences = 4;
    limits.kept_history = 3;
    return limits;
  }
  static client::ClientOptions Options() {
    client::ClientOptions options;
    options.targets = {"a", "b"};
    options.message_rows = 2;
    options.history_piece_tokens = 5;
    options.default_timeout = absl::Hours(1);
    options.connect_timeout = absl::Milliseconds(300);
    options.backoff = {absl::Milliseconds(5), absl::Milliseconds(40)};
    return options;
  }

  std::unique_ptr<Worker> MakeWorker(int index) {
    auto worker = std::make_unique<Worker>();
    client::SequenceOptions options;
    options.request_id = absl::StrCat("request ", index);
    options.vocabulary_size = kVocabulary;
    options.prompt = {1, 2, 3};
    options.choice_index = static_cast<uint32_t>(index);
    if (index % 2 == 0) options.seed = 1000 + static_cast<uint64_t>(index);
    options.parameters.set_temperature(1.5);
    options.parameters.mutable_processed_logprobs()->set_top(2);
    if (index > 0) {  // all but the first keep state
      options.parameters.set_repetition_penalty(1.3f);
      options.parameters.set_frequency_penalty(0.5f);
    }
    worker->record = std::make_shared<client::SequenceRecord>(options);
    auto open = std::make_unique<client::PendingOpen>();
    open->record = worker->record;
    open->deadline = world_.now() + absl::Hours(1);
    open->done = [worker = worker.get(), options](absl::Status status) {
      ASSERT_TRUE(status.ok()) << status;
      absl::MutexLock lock(&worker->record->mutex);
      worker->reference = std::make_unique<ReferenceSequence>(
          options.parameters, worker->record->seed, options.choice_index, kVocabulary, kVocabulary, options.prompt);
      worker->open = true;
    };
    state_.Open(std::move(open), world_.now());
    return worker;
  }

  bool Done() const {
    for (const auto& worker : workers_) {
      if (worker->drawn < kTokens || worker->busy) return false;
    }
    return true;
  }

  void Collect() {
    client::StreamState::Finished finished = state_.TakeFinished();
    for (auto& open : finished.opens) std::move(open->done)(open->outcome);
    for (auto& batch : released_) finished.batches.push_back(std::move(batch));
    released_.clear();
    for (auto& batch : finished.batches) batch->Finish();
  }

  // Submits one batch of one to three idle sequences, some after an edit.
  void Act() {
    auto batch = std::make_shared<client::PendingBatch>();
    std::vector<Worker*> chosen;
    for (const auto& worker : workers_) {
      if (!worker->open || worker->busy || worker->drawn >= kTokens || chosen.size() == 3 || world_.random()() % 2 == 0)
        continue;
      Edit(worker.get());
      worker->row = MakeRow(v1::DTYPE_BF16, kVocabulary, world_.random()());
      worker->busy = true;
      client::PendingRow& row = batch->rows.emplace_back();
      row.record = worker->record;
      row.row.logits = worker->row.data();
      chosen.push_back(worker.get());
    }
    if (chosen.empty()) return;
    const bool hurried = world_.random()() % 10 == 0;
    batch->dtype = v1::DTYPE_BF16;
    batch->vocabulary_size = kVocabulary;
    batch->row_bytes = 2 * kVocabulary;
    batch->deadline = world_.now() + (hurried ? absl::Milliseconds(3) : absl::Hours(1));
    batch->done = [this, chosen, hurried](std::vector<client::RowOutcome> outcomes) {
      ASSERT_EQ(outcomes.size(), chosen.size());
      for (size_t i = 0; i < chosen.size(); ++i) Check(chosen[i], outcomes[i], hurried);
    };
    state_.Submit(std::move(batch), world_.now());
    Collect();
  }

  void Edit(Worker* worker) {
    std::mt19937_64& random = world_.random();
    std::vector<uint32_t> tokens = worker->reference->tokens();
    const uint32_t prompt = worker->reference->prompt_length();
    if (tokens.size() == prompt || random() % 5 != 0) return;
    absl::MutexLock lock(&worker->record->mutex);
    client::History& history = worker->record->history;
    const uint32_t token = static_cast<uint32_t>(random() % kVocabulary);
    if (random() % 2 == 0) {
      ASSERT_TRUE(history.ReplaceLast(token).ok());
      tokens.back() = token;
    } else {
      const uint32_t position = prompt + static_cast<uint32_t>(random() % (tokens.size() - prompt));
      ASSERT_TRUE(history.Truncate(position).ok());
      history.Append({&token, 1});
      tokens.resize(position);
      tokens.push_back(token);
    }
    worker->reference->SetTokens(tokens, prompt);
  }

  void Check(Worker* worker, const client::RowOutcome& outcome, bool hurried) {
    worker->busy = false;
    if (const auto* error = std::get_if<client::RowError>(&outcome)) {
      ASSERT_TRUE(hurried) << client::Describe(*error);
      ASSERT_TRUE(error->reason == v1::DEADLINE_PASSED || error->reason == v1::OVERLOADED ||
                  error->reason == v1::STEP_IN_FLIGHT || error->reason == v1::DEVICE_FAILED)
          << client::Describe(*error);
      ++missed_deadlines_;
      return;
    }
    const v1::DrawResult expected = worker->reference->Step(v1::DTYPE_BF16, worker->row.data());
    ASSERT_EQ(Bits(std::get<v1::DrawResult>(outcome)), Bits(expected)) << worker->record->options.request_id;
    absl::MutexLock lock(&worker->record->mutex);
    ASSERT_EQ(worker->record->history.position(), worker->reference->tokens().size());
    ++worker->drawn;
  }

  const client::ClientOptions options_ = Options();
  LossyWorld world_;
  std::vector<std::shared_ptr<client::PendingBatch>> released_;
  client::StreamState state_;
  std::vector<std::unique_ptr<Worker>> workers_;
  uint64_t missed_deadlines_ = 0;
};

TEST(LossyWorldTest, TextsAreTheReferencesWhateverIsLostOrRepeated) {
  LossyWorld::Faults faults;
  uint64_t missed_deadlines = 0;
  const uint64_t runs = Scaled(1000);
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    LossyRun run(seed);
    ASSERT_TRUE(run.Run()) << "no progress";
    faults.broken_streams += run.faults().broken_streams;
    faults.killed_servers += run.faults().killed_servers;
    faults.repeated_answers += run.faults().repeated_answers;
    faults.drained_streams += run.faults().drained_streams;
    faults.lost_answers += run.faults().lost_answers;
    missed_deadlines += run.missed_deadlines();
  }
  EXPECT_GT(faults.broken_streams, runs);
  EXPECT_GT(faults.killed_servers, runs / 2);
  EXPECT_GT(faults.repeated_answers, runs);
  EXPECT_GT(faults.drained_streams, runs / 2);
  EXPECT_GT(faults.lost_answers, runs);
  EXPECT_GT(missed_deadlines, runs / 2);
  RecordProperty("faults",
                 absl::StrCat(faults.broken_streams, " broken streams, ", faults.killed_servers, " killed servers, ",
                              faults.repeated_answers, " repeated and ", faults.lost_answers, " lost answers, ",
                              faults.drained_streams, " drained streams, ", missed_deadlines, " missed deadlines"));
}

}  // namespace
}  // namespace sortition::testing
