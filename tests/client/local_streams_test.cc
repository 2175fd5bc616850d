// Streams to a sampler in this process: the messages to it, and the fate of its answers.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/local/local_sampler.h"
#include "gtest/gtest.h"
#include "sortition/in_process.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::local_streams_test {
namespace {

using client::LocalOpen;
using client::LocalOpened;
using client::LocalStep;

// Keeps the messages that it gets.
class FakeSampler final : public client::LocalSampler {
 public:
  std::vector<LocalOpen> opens;
  std::vector<LocalStep> steps;
  std::vector<uint64_t> dropped;
  std::vector<const client::SequenceRecord*> closed;

  void Open(LocalOpen open) override { opens.push_back(std::move(open)); }
  void Step(LocalStep step) override { steps.push_back(std::move(step)); }
  void Drop(uint64_t batch_id) override { dropped.push_back(batch_id); }
  void Close(const client::SequenceRecord* record) override { closed.push_back(record); }
};

class LocalStreamsTest : public ::testing::Test {
 protected:
  using Record = std::shared_ptr<client::SequenceRecord>;

  explicit LocalStreamsTest(std::vector<std::string> targets = {})
      : harness_(
            [&] {
              client::ClientOptions options = HarnessOptions(targets);
              options.in_process = client::InProcessEngine();
              return options;
            }(),
            [&] {
              auto connector = std::make_shared<FakeConnector>();
              connector->sampler = &sampler_;
              connector->sampler_target = targets.size();
              return connector;
            }()) {}

  uint64_t number() { return harness_.last_stream().number; }

  // Answers the last open as a sampler does.
  void Accept() {
    const LocalOpen& open = sampler_.opens.back();
    service::HistoryIdentity identity;
    identity.law_version = law::kLawVersion;
    identity.seed = 5;
    identity.vocabulary = identity.live_vocabulary = StateHarness::kVocabulary;
    identity.repetition_penalty = 1.5;
    uint64_t chain = service::kEmptyHash;
    for (uint32_t token : open.tokens) chain = service::ExtendTokenHash(chain, token);
    const uint64_t hash = service::HistoryHash(chain, open.prompt_length, service::HistoryDigest(identity));
    harness_.state.OnLocalOpened(number(), open.epoch, LocalOpened{5, true, hash, 0}, harness_.now);
    harness_.MoveBy(absl::ZeroDuration());
  }
  Record OpenStateful(const std::string& id) {
    client::SequenceOptions options;
    options.request_id = id;
    options.prompt = {1, 2};
    options.seed = 5;
    options.parameters.set_repetition_penalty(1.5);
    const StateHarness::Opened opened = harness_.Open(std::move(options));
    Accept();
    EXPECT_TRUE(opened.status->ok()) << *opened.status;
    return opened.record;
  }
  void Answer(uint64_t batch_id, uint32_t token) {
    v1::DrawResult draw;
    draw.set_token(token);
    std::vector<client::LocalResult> results;
    results.push_back({0, draw});
    harness_.state.OnLocalResults(number(), batch_id, std::move(results), harness_.now);
    harness_.MoveBy(absl::ZeroDuration());
  }

  FakeSampler sampler_;
  StateHarness harness_;
};

TEST_F(LocalStreamsTest, StreamIsUsableAtOnceWithoutMessages) {
  EXPECT_TRUE(harness_.state.usable());
  const Record record = OpenStateful("a");
  EXPECT_EQ(sampler_.opens.back().tokens, (std::vector<uint32_t>{1, 2}));
  const auto results = harness_.Submit({record});
  ASSERT_EQ(sampler_.steps.size(), 1);
  EXPECT_EQ(sampler_.steps[0].rows[0].position, 2);
  Answer(sampler_.steps[0].batch_id, 3);
  EXPECT_EQ(results->times, 0) << "the sampler still holds the rows";
  sampler_.steps.clear();
  EXPECT_EQ(results->times, 1);
  EXPECT_NE(DrawOfRow(results->rows[0]), nullptr);
  EXPECT_EQ(StateHarness::Position(*record), 3);
  EXPECT_TRUE(harness_.last_stream().sent.empty());
  harness_.state.Close(record.get());
  EXPECT_EQ(sampler_.closed, (std::vector<const client::SequenceRecord*>{record.get()}));
}

TEST_F(LocalStreamsTest, RewritesTravelAsSharedAndAppended) {
  const Record record = OpenStateful("a");
  {
    absl::MutexLock lock(&record->mutex);
    ASSERT_TRUE(record->history.ReplaceLast(7).ok());
    record->history.Append(std::vector<uint32_t>{4});
  }
  harness_.Submit({record});
  const client::LocalRow& row = sampler_.steps.at(0).rows[0];
  EXPECT_EQ(row.position, 3);
  EXPECT_EQ(row.shared, 1);
  EXPECT_EQ(row.appended, (std::vector<uint32_t>{7, 4}));
}

TEST_F(LocalStreamsTest, LateStepIsDroppedAndReopened) {
  const Record record = OpenStateful("a");
  auto results = harness_.Submit({record}, absl::Seconds(1));
  const uint64_t late = sampler_.steps.at(0).batch_id;
  harness_.MoveBy(absl::Seconds(2));
  EXPECT_EQ(sampler_.dropped, (std::vector<uint64_t>{late}));
  EXPECT_EQ(results->times, 0) << "a row may still be read";
  sampler_.steps.clear();
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::DEADLINE_PASSED);
  EXPECT_EQ(harness_.connector.streams.size(), 1) << "the stream stays";
  Answer(late, 3);
  EXPECT_EQ(StateHarness::Position(*record), 2) << "a late answer counts nothing";
  // The sampler may have advanced the sequence: it is opened again, with its text.
  harness_.Submit({record});
  EXPECT_TRUE(sampler_.steps.empty());
  EXPECT_EQ(sampler_.opens.size(), 2);
  Accept();
  EXPECT_EQ(sampler_.steps.size(), 1);
}

TEST_F(LocalStreamsTest, RefusedForkIsOpenedWithItsHistory) {
  const Record parent = OpenStateful("a");
  client::SequenceOptions options;
  options.request_id = "b";
  options.seed = 5;
  options.vocabulary_size = StateHarness::kVocabulary;
  options.parameters.set_repetition_penalty(1.5);
  const auto child = std::make_shared<client::SequenceRecord>(std::move(options));
  child->origin = client::SequenceRecord::Origin{parent, 1};
  {
    absl::MutexLock lock(&parent->mutex);
    absl::MutexLock child_lock(&child->mutex);
    child->history = client::History::MakeFork(parent->history, 1);
  }
  const StateHarness::Opened opened = harness_.Open(child);
  EXPECT_EQ(sampler_.opens.back().parent, parent);
  EXPECT_EQ(sampler_.opens.back().position, 1);
  client::RowError refusal;
  refusal.reason = v1::HISTORY_REQUIRED;
  harness_.state.OnLocalOpened(number(), sampler_.opens.back().epoch, refusal, harness_.now);
  EXPECT_EQ(sampler_.opens.back().parent, nullptr);
  EXPECT_EQ(sampler_.opens.back().tokens, (std::vector<uint32_t>{1}));
  Accept();
  EXPECT_TRUE(opened.status->ok()) << *opened.status;
}

class FallbackStreamsTest : public LocalStreamsTest {
 protected:
  FallbackStreamsTest() : LocalStreamsTest({"a"}) {}
};

TEST_F(FallbackStreamsTest, TokensMoveThereAndBack) {
  harness_.Welcome(harness_.last_stream());
  const Record record = harness_.OpenOn(harness_.last_stream(), "a", true);
  auto results = harness_.Submit({record});
  harness_.AnswerRow(harness_.last_stream(), harness_.TakeStep(harness_.last_stream()), 0, 6);
  for (int failures = 0; failures < 2; ++failures) {
    harness_.End(harness_.last_stream());
    if (harness_.last_stream().sampler != nullptr) break;
  }
  ASSERT_NE(harness_.last_stream().sampler, nullptr);
  harness_.Submit({record});
  EXPECT_EQ(sampler_.opens.at(0).tokens, (std::vector<uint32_t>{1, 2, 6}));
  EXPECT_EQ(sampler_.opens.at(0).seed, 77) << "the seed that the server drew";
}

// This process has no key of the operator's: rows wait for the service as long as their deadline lets them.
TEST_F(FallbackStreamsTest, MarkedTextWaitsForService) {
  harness_.Welcome(harness_.last_stream());
  const Record record = harness_.OpenOn(harness_.last_stream(), "a", true);
  v1::PolicyEffect effect;
  effect.set_watermark_key_id("first");
  record->TakePolicy(effect);
  for (int failures = 0; failures < 2; ++failures) {
    harness_.End(harness_.last_stream());
    if (harness_.last_stream().sampler != nullptr) break;
  }
  ASSERT_NE(harness_.last_stream().sampler, nullptr);
  const auto waiting = harness_.Submit({record});
  EXPECT_EQ(waiting->times, 0);
  EXPECT_TRUE(sampler_.opens.empty());
}

}  // namespace
}  // namespace sortition::testing::local_streams_test
