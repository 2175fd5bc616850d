// Several streams from several threads on one engine with the CPU device: the same bits as on one thread.

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/support/scale.h"
#include "tests/support/session.h"

namespace sortition::service::session_threads_test {
namespace {

using testing::Scaled;

constexpr uint32_t kVocabulary = 200;

v1::OpenSequence OpenWith(const std::string& name, uint64_t epoch, std::mt19937_64* random) {
  v1::OpenSequence open = MakeOpen(name, epoch, kVocabulary);
  open.set_seed((*random)());
  v1::SamplingParameters& parameters = *open.mutable_parameters();
  if ((*random)() % 2 == 0) parameters.set_top_p(0.9f);
  if ((*random)() % 2 == 0) parameters.set_repetition_penalty(1.2f);
  if ((*random)() % 2 == 0) parameters.set_frequency_penalty(0.4f);
  if ((*random)() % 2 == 0) parameters.mutable_raw_logprobs()->set_top(2);
  if (!parameters.has_repetition_penalty() && !parameters.has_frequency_penalty()) return open;
  open.mutable_history()->set_prompt_length(4);
  for (int i = 0; i < 4; ++i) open.mutable_history()->add_tokens(static_cast<uint32_t>((*random)() % kVocabulary));
  return open;
}

// Runs one worker with several sequences, all of which step together.
void LiveAlone(Engine* engine, uint64_t seed, uint64_t steps) {
  constexpr int kSequences = 5;
  std::mt19937_64 random(seed);
  StreamWorker::Options options;
  options.worker_session = absl::StrCat("worker-", seed);
  options.seed = seed;
  StreamWorker worker(engine, options);
  std::vector<PlainSequence> plain;
  std::vector<std::string> names;
  std::vector<bool> stateful;
  for (int i = 0; i < kSequences; ++i) {
    names.push_back(absl::StrCat("s", i));
    const v1::OpenSequence open = OpenWith(names.back(), 1, &random);
    stateful.push_back(worker.MustOpen(open).stateful());
    plain.emplace_back(open);
  }
  for (uint64_t step_id = 1; step_id <= steps; ++step_id) {
    StepBuilder step(step_id, kVocabulary);
    step.step().set_priority(static_cast<int32_t>(random() % 3));
    std::vector<std::string> expected;
    for (int i = 0; i < kSequences; ++i) {
      const std::string logits = RandomLogits(kernels::DType::kF32, kVocabulary, &random);
      v1::StepRow& row = step.AddRow(names[i], step_id, plain[i].position(), logits);
      if (stateful[i]) row.set_history_hash(plain[i].hash());
      v1::DrawResult draw = plain[i].Draw({.logits = logits});
      plain[i].Append(draw.token());
      if (stateful[i]) draw.set_history_hash(plain[i].hash());
      expected.push_back(draw.SerializeAsString());
    }
    const auto results = worker.Run(step.Build());
    ASSERT_EQ(results.size(), expected.size());
    for (int i = 0; i < kSequences; ++i) ASSERT_EQ(results[i].draw().SerializeAsString(), expected[i]);
  }
  EXPECT_TRUE(worker.IsIdle());
}

TEST(SessionThreads, ManyStreamsOnOneEngine) {
  TestEngine engine = TestEngine::OnCpu();
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] { LiveAlone(engine.get(), seed, Scaled(100)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine.observer().totals().tokens, 4 * 5 * Scaled(100));
  EXPECT_EQ(engine.observer().totals().errors, 0u);
}

// Two streams take one sequence from each other, again and again. Every token that is answered is the token due at its
// position of the one history.
TEST(SessionThreads, TwoStreamsCompeteForOneSequence) {
  TestEngine engine = TestEngine::OnCpu();
  std::mt19937_64 random(11);
  v1::OpenSequence open = OpenWith("contested", 1, &random);
  open.mutable_parameters()->set_repetition_penalty(1.2f);
  open.mutable_history()->set_prompt_length(0);
  const auto steps = static_cast<uint32_t>(Scaled(200));
  std::vector<std::string> logits;
  std::vector<std::string> expected;
  std::vector<uint64_t> hashes;  // before each step
  PlainSequence plain(open);
  const uint32_t start = plain.position();
  for (uint32_t step = 0; step < steps; ++step) {
    logits.push_back(RandomLogits(kernels::DType::kF32, kVocabulary, &random));
    hashes.push_back(plain.hash());
    v1::DrawResult draw = plain.Draw({.logits = logits.back()});
    plain.Append(draw.token());
    draw.set_history_hash(plain.hash());
    expected.push_back(draw.SerializeAsString());
  }
  {
    StreamWorker first(engine.get());
    first.MustOpen(open);
  }

  std::atomic<uint64_t> epoch = 2;
  const auto fight = [&](uint64_t seed) {
    std::mt19937_64 choices(seed);
    StreamWorker::Options options;
    options.seed = seed;
    StreamWorker worker(engine.get(), options);
    uint64_t batch_id = 0;
    for (;;) {
      v1::OpenSequence again = open;
      again.clear_history();
      again.set_epoch(epoch.fetch_add(1));
      const v1::SequenceOpened opened = worker.Open(again);
      if (opened.has_error()) {
        ASSERT_EQ(opened.error().reason(), v1::SUPERSEDED) << opened.error().ShortDebugString();
        continue;
      }
      uint32_t at = opened.state().position() - start;
      for (uint64_t run = 1 + choices() % 5; run > 0; --run, ++at) {
        if (at == steps) return;
        StepBuilder step(++batch_id, kVocabulary);
        step.AddRow("contested", at + 1, start + at, logits[at]).set_history_hash(hashes[at]);
        const auto results = worker.Run(step.Build());
        ASSERT_EQ(results.size(), 1u);
        if (results[0].has_error()) {
          ASSERT_EQ(results[0].error().reason(), v1::SUPERSEDED) << results[0].ShortDebugString();
          break;
        }
        ASSERT_EQ(results[0].draw().SerializeAsString(), expected[at]) << at;
      }
    }
  };
  std::thread rival(fight, 1);
  fight(2);
  rival.join();
}

// Streams end at any moment, with steps on their way, while other streams continue.
TEST(SessionThreads, EndedStreamsDisturbNoOthers) {
  TestEngine engine = TestEngine::OnCpu();
  std::thread steady([&] { LiveAlone(engine.get(), 100, Scaled(100)); });
  std::mt19937_64 random(12);
  for (uint64_t round = 0; round < Scaled(200); ++round) {
    StreamWorker worker(engine.get());
    const v1::OpenSequence open = OpenWith("short", round + 1, &random);
    worker.MustOpen(open);
    const PlainSequence plain(open);
    StepBuilder step(1, kVocabulary);
    step.AddRow("short", 1, plain.position(), RandomLogits(kernels::DType::kF32, kVocabulary, &random))
        .set_history_hash(plain.hash());
    worker.Send(step.Build());
    if (random() % 2 == 0) worker.Send(testing::MakeCancel(1));
    if (random() % 2 == 0) worker.session().Close();
  }
  steady.join();
  EXPECT_EQ(engine->batcher().queued_rows(), 0u);
}

}  // namespace
}  // namespace sortition::service::session_threads_test
