// Tensor-parallel ranks, each with a client and a shard of every row: the tokens and logprobs of the whole rows, over
// every transport and through every loss. The ranks of a test share nothing but the server.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/e2e/rank_texts.h"
#include "tests/e2e/servers.h"
#include "tests/server/server_process.h"

namespace sortition::testing::ranks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

client::ClientOptions MakeOptions(const std::string& target, uint32_t index, uint32_t count) {
  client::ClientOptions options = QuickOptions({target});
  options.worker_session = "ranks";
  options.shard = ShardOf(index, count);
  options.transport.shared_memory_bytes = 1 << 20;
  return options;
}

// A rank that waits for others says so when its time has passed, if the server has told it by then: so `timeout` is
// many times the server's shard_wait.
client::StepOptions Within(absl::Duration timeout) {
  client::StepOptions options;
  options.timeout = timeout;
  return options;
}

// Waits until a rank has done `steps` steps.
void AwaitSteps(const std::atomic<int>& done, int steps) {
  const absl::Time deadline = absl::Now() + kLongestWait;
  while (done < steps && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
}

class RanksTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(RanksTest, TokensEqualWholeRowsOnEveryTransport) {
  const uint32_t count = GetParam();
  const std::string path = absl::StrCat("unix:", ::testing::TempDir(), "sortition_ranks_", getpid());
  const auto server = StartServer({absl::StrCat("--memory_listen=", path, "_memory.sock"),
                                   absl::StrCat("--listen=127.0.0.1:0,", path, "_stream.sock")});
  const RankTexts texts(6);
  using client::TransportKind;
  struct Case {
    TransportKind kind;
    bool row_memory;
    std::string target;
  };
  for (const Case& how :
       {Case{TransportKind::kGrpc, false, server->address()}, Case{TransportKind::kGrpc, false, path + "_stream.sock"},
        Case{TransportKind::kGrpc, true, server->address()}, Case{TransportKind::kRing, true, path + "_memory.sock"}}) {
    OnRanks(count, [&](uint32_t index) {
      client::ClientOptions options = MakeOptions(how.target, index, count);
      options.worker_session = absl::StrCat("transport ", static_cast<int>(how.kind), how.row_memory, how.target);
      options.transport.kind = how.kind;
      if (!how.row_memory) options.transport.shared_memory_bytes = 0;
      options.limits.message_rows = index + 1;  // each rank cuts its messages differently
      Rank rank(&texts, options);
      EXPECT_EQ(rank.client().transport_in_use().kind, how.kind);
      EXPECT_EQ(rank.client().transport_in_use().row_memory, how.row_memory);
      while (rank.done() < texts.steps() && !HasFatalFailure()) rank.Step();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, RanksTest, ::testing::Values(2, 4));

void AskRawLogprobs(v1::SamplingParameters* parameters) { parameters->mutable_raw_logprobs()->set_top(2); }

// Options that need no sum over the whole row.
void KeepFew(v1::SamplingParameters* parameters) {
  parameters->set_top_k(20);
  parameters->mutable_processed_logprobs()->set_top(2);
}

// Returns the results of five steps of scores, drafts and cuts of one text, over the shards of `shard`, or over whole
// rows if that is absent.
std::vector<std::string> MixedSteps(client::Client* client, const std::optional<client::VocabularyShard>& shard,
                                    void (*set)(v1::SamplingParameters*) = AskRawLogprobs) {
  constexpr uint32_t kWhole = RankTexts::kVocabulary;
  const uint32_t first = shard ? shard->first_token : 0;
  const uint32_t width = shard ? shard->tokens : kWhole;
  client::SequenceOptions options;
  options.request_id = "mixed";
  options.vocabulary_size = kWhole;
  options.seed = 9;
  options.prompt = {1, 2, 3};
  options.parameters.set_temperature(0.7f);
  options.parameters.set_presence_penalty(0.5f);
  set(&options.parameters);
  const auto opened = client->Open(options);
  EXPECT_TRUE(opened.ok()) << opened.status();
  client::Sequence& sequence = **opened;
  const std::vector<uint32_t> given = {5, 6, 7};
  const std::vector<float> drafter(size_t{kWhole} * given.size(), 1.0f / kWhole);
  std::vector<std::string> said;
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<float> logits;
    for (uint64_t position = 0; position < given.size() + 1; ++position) {
      const std::vector<std::byte> row = MakeRow(v1::DTYPE_F32, kWhole, step << 8 | position);
      const auto* const values = reinterpret_cast<const float*>(row.data());
      logits.insert(logits.end(), values + first, values + first + width);
    }
    client::Drafts drafts;
    drafts.tokens = given;
    drafts.mode = step == 2 ? v1::VERIFY_MODE_REJECTION : v1::VERIFY_MODE_COUPLED;
    if (step == 2) drafts.probabilities = drafter.data();
    client::Row row{&sequence, logits.data()};
    if (step < 2) row.scored = std::span(given).subspan(step);  // another score at the same position
    if (step == 2 || step == 3) row.drafts = &drafts;
    const absl::Status cut = step == 3 ? sequence.Truncate(3) : absl::OkStatus();
    EXPECT_TRUE(cut.ok()) << cut;
    const auto outcomes = client->Step({v1::DTYPE_F32, width, {row}});
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    said.push_back(Bits(outcomes->at(0)).value_or("refused"));
    if (const auto* error = std::get_if<client::RowError>(&outcomes->at(0))) ADD_FAILURE() << client::Describe(*error);
  }
  EXPECT_EQ(sequence.turns(), 3u);
  return said;
}

TEST(RankTaskTest, ScoresDraftsAndCutsEqualWholeRows) {
  constexpr uint32_t kRanks = 3;
  const auto server = StartServer();
  const auto whole = Connect(QuickOptions({server->address()}));
  const std::vector<std::string> expected = MixedSteps(whole.get(), std::nullopt);
  OnRanks(kRanks, [&](uint32_t index) {
    const client::ClientOptions options = MakeOptions(server->address(), index, kRanks);
    const auto client = Connect(options);
    EXPECT_EQ(MixedSteps(client.get(), options.shard), expected);
  });
}

TEST(RankTaskTest, CompactShardsEqualWholeRows) {
  constexpr uint32_t kRanks = 3;
  server::ServerProcess process({{"--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--cpu_threads=1"}, {}, 0});
  const std::string address = process.Serving("listen");
  const std::string metrics = process.Serving("metrics");
  const auto whole = Connect(QuickOptions({address}));
  const std::vector<std::string> expected = MixedSteps(whole.get(), std::nullopt, KeepFew);
  const auto decided = [&] { return server::Metric(metrics, "sortition_compact_rows_total{outcome=\"decided\"}"); };
  EXPECT_EQ(decided(), 0);
  OnRanks(kRanks, [&](uint32_t index) {
    client::ClientOptions options = MakeOptions(address, index, kRanks);
    options.rows = {client::RowFormOptions::Form::kCompact, 40};
    const auto client = Connect(options);
    EXPECT_EQ(MixedSteps(client.get(), options.shard, KeepFew), expected);
  });
  EXPECT_EQ(decided(), 5);
}

TEST(RankLossTest, KilledAndRestartedServerChangesNoToken) {
  constexpr uint32_t kRanks = 4;
  constexpr int kDeaths = 4;
  auto server = StartServer();
  const int port = server->port();
  const std::string address = server->address();
  const RankTexts texts(1200);
  std::atomic<int> furthest = 0;
  const auto step = [&](uint32_t index) {
    Rank rank(&texts, MakeOptions(address, index, kRanks));
    while (rank.done() < texts.steps() && !HasFatalFailure()) {
      rank.Step();
      if (index == 0) furthest = rank.done();
    }
  };
  OnRanks(kRanks, step, [&] {
    for (int death = 1; death <= kDeaths; ++death) {
      AwaitSteps(furthest, furthest + 3);
      absl::SleepFor(absl::Microseconds(150 * death));  // into some step
      server->process().Signal(SIGKILL);
      ASSERT_TRUE(server->process().Wait(kLongestWait).ok());
      server = StartServer({}, port);
    }
    ASSERT_LT(furthest, texts.steps()) << "the last servers had nothing to do";
  });
}

// Every rank ends in turn, without notice, and continues in a new process with the text that it is given.
TEST(RankLossTest, RestartedRankContinues) {
  constexpr uint32_t kRanks = 4;
  const auto server = StartServer();
  const RankTexts texts(24);
  OnRanks(kRanks, [&](uint32_t index) {
    auto rank = std::make_unique<Rank>(&texts, MakeOptions(server->address(), index, kRanks));
    while (rank->done() < texts.steps() && !HasFatalFailure()) {
      rank->Step();
      const int done = rank->done();
      if (done % 8 != static_cast<int>(index) * 2) continue;
      rank.reset();
      rank = std::make_unique<Rank>(&texts, MakeOptions(server->address(), index, kRanks), done);
    }
  });
}

// Streams end and begin at each rank's own times.
TEST(RankLossTest, StreamsOfBoundedAgeChangeNoToken) {
  constexpr uint32_t kRanks = 3;
  const auto server = StartServer({"--max_stream_age=30ms"});
  const RankTexts texts(300);
  OnRanks(kRanks, [&](uint32_t index) {
    Rank rank(&texts, MakeOptions(server->address(), index, kRanks));
    while (rank.done() < texts.steps() && !HasFatalFailure()) rank.Step();
  });
}

TEST(RankLossTest, DrainedServerHandsRanksOverAtOnce) {
  constexpr uint32_t kRanks = 3;
  auto server = StartServer();
  const int port = server->port();
  const std::string address = server->address();
  const RankTexts texts(300);
  std::atomic<int> furthest = 0;
  const auto step = [&](uint32_t index) {
    Rank rank(&texts, MakeOptions(address, index, kRanks));
    while (rank.done() < texts.steps() && !HasFatalFailure()) {
      const absl::Time start = absl::Now();
      rank.Step();
      EXPECT_LT(absl::Now() - start, absl::Seconds(9)) << "shards waited for others until their time had passed";
      if (index == 0) furthest = rank.done();
    }
  };
  OnRanks(kRanks, step, [&] {
    AwaitSteps(furthest, 20);
    server->process().Signal(SIGTERM);
    const auto code = server->process().Wait(kLongestWait);
    ASSERT_TRUE(code.ok() && *code == 0);
    server = StartServer({}, port);
  });
}

TEST(RankLossTest, MissingRankIsNamedNothingIsLost) {
  constexpr uint32_t kRanks = 3;
  const auto server = StartServer({"--shard_wait=100ms"});
  const RankTexts texts(3);
  std::atomic<int> told = 0;
  OnRanks(kRanks, [&](uint32_t index) {
    Rank rank(&texts, MakeOptions(server->address(), index, kRanks));
    rank.Step();
    if (index != 1) {
      for (const client::RowResult& outcome : rank.TryStep(Within(absl::Seconds(2)))) {
        const auto* error = std::get_if<client::RowError>(&outcome);
        ASSERT_NE(error, nullptr);
        EXPECT_EQ(error->reason, v1::DEADLINE_PASSED);
        EXPECT_EQ(error->field, "step.logits.shard");
        EXPECT_THAT(error->message, HasSubstr("of 3 shards these have not come: "));
        EXPECT_THAT(error->message, HasSubstr("1"));
      }
      ++told;
    } else {
      AwaitSteps(told, 2);
    }
    while (rank.done() < texts.steps() && !HasFatalFailure()) rank.Step();
  });
}

// Returns the results of one step for the ranks of `shards`. All ranks step at once when each has opened the sequence.
std::vector<client::RowResult> OutcomesOf(const std::string& target, const std::string& session,
                                          const std::vector<client::VocabularyShard>& shards) {
  const RankTexts texts(1);
  const uint32_t count = static_cast<uint32_t>(shards.size());
  std::vector<client::RowResult> outcomes(count);
  std::barrier opened_by_all(count);
  OnRanks(count, [&](uint32_t index) {
    client::ClientOptions options = MakeOptions(target, index, count);
    options.worker_session = session;
    options.shard = shards[index];
    client::SequenceOptions sequence = texts.options(0);
    sequence.vocabulary_size = shards[index].vocabulary_size;
    const auto client = Connect(options);
    const auto opened = client->Open(sequence);
    opened_by_all.arrive_and_wait();
    ASSERT_TRUE(opened.ok()) << opened.status();
    client::Batch batch{v1::DTYPE_F16, shards[index].tokens, {{opened->get(), texts.row(0, 0).data()}}};
    auto stepped = client->Step(batch, Within(absl::Seconds(4)));
    ASSERT_TRUE(stepped.ok()) << stepped.status();
    outcomes[index] = stepped->at(0);
  });
  return outcomes;
}

std::vector<std::string> FieldsOf(const std::vector<client::RowResult>& outcomes) {
  std::vector<std::string> fields;
  for (const client::RowResult& outcome : outcomes) {
    const auto* error = std::get_if<client::RowError>(&outcome);
    fields.push_back(error == nullptr ? "answered"
                                      : absl::StrCat(v1::ErrorReason_Name(error->reason), " ", error->field));
  }
  return fields;
}

TEST(RankLossTest, MismatchedShardsAreRefusedByField) {
  const auto server = StartServer({"--shard_wait=100ms"});
  // The second shard to arrive is refused; the first one keeps waiting for its match.
  const std::string waits = "DEADLINE_PASSED step.logits.shard";
  struct Case {
    std::string session;
    std::vector<client::VocabularyShard> shards;
    std::vector<std::string> told;
  };
  const std::vector<Case> cases = {
      {"gap",
       {{0, 2, 0, 1000, 2000}, {1, 2, 1001, 999, 2000}},
       {"SIZE_MISMATCH step.logits.shard.total_vocabulary_size",
        "SIZE_MISMATCH step.logits.shard.total_vocabulary_size"}},
      {"overlap",
       {{0, 2, 0, 1001, 2000}, {1, 2, 1000, 1000, 2000}},
       {waits, "CONTRADICTION step.logits.shard.first_token"}},
      {"vocabulary",
       {{0, 2, 0, 1000, 2000}, {1, 2, 1000, 1000, 2001}},
       {waits, "CONTRADICTION step.logits.shard.total_vocabulary_size"}},
      {"count", {{0, 2, 0, 1000, 2000}, {1, 3, 1000, 1000, 2000}}, {waits, "CONTRADICTION step.logits.shard.count"}},
  };
  OnRanks(static_cast<uint32_t>(cases.size()), [&](uint32_t index) {
    const Case& each = cases[index];
    EXPECT_THAT(FieldsOf(OutcomesOf(server->address(), each.session, each.shards)),
                UnorderedElementsAreArray(each.told))
        << each.session;
  });
}

TEST(RankLossTest, MisfitStepIsRefusedBeforeSending) {
  const auto server = StartServer();
  const auto client = Connect(MakeOptions(server->address(), 1, 2));
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  sequence.vocabulary_size = 1000;
  EXPECT_EQ(client->Open(sequence).status().code(), absl::StatusCode::kInvalidArgument);
  sequence.vocabulary_size = RankTexts::kVocabulary;
  const auto opened = client->Open(sequence);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const std::vector<float> row(RankTexts::kVocabulary);
  const auto stepped = client->Step({v1::DTYPE_F32, RankTexts::kVocabulary, {{opened->get(), row.data()}}});
  EXPECT_EQ(stepped.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(stepped.status().message()), HasSubstr("shard.tokens"));
}

}  // namespace
}  // namespace sortition::testing::ranks_test
