// Servers die, drain, stop or are missing: the texts stay the reference's.
#include <signal.h>
#include <sys/wait.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "sortition/in_process.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/e2e/servers.h"
#include "tests/e2e/texts.h"

namespace sortition::testing::failure_test {
namespace {

TEST(FailureTest, KilledAndRestartedServerChangesNoToken) {
  auto server = StartServer();
  const int port = server->port();
  const auto client = Connect(QuickOptions({server->address()}));
  Texts texts(client.get(), "text");
  for (int death = 0; death < 5; ++death) {
    for (int step = 0; step < 4; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
    texts.Begin();
    server->process().Signal(SIGKILL);
    const auto code = server->process().Wait(kLongestWait);
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 128 + SIGKILL);
    server = StartServer({}, port);
    ASSERT_NO_FATAL_FAILURE(texts.End());
  }
  EXPECT_EQ(texts.steps(), 25);
}

TEST(FailureTest, ThousandSequencesOutliveTwoServers) {
  auto first = StartServer();
  auto second = StartServer();
  const int first_port = first->port();
  const auto client = Connect(QuickOptions({first->address(), second->address()}));
  Texts texts(client.get(), "text", 1000);
  const auto kill = [&](std::unique_ptr<process::ServerProcess>& server) {
    texts.Begin();
    server->process().Signal(SIGKILL);
    ASSERT_TRUE(server->process().Wait(kLongestWait).ok());
  };
  ASSERT_NO_FATAL_FAILURE(texts.Step());
  ASSERT_NO_FATAL_FAILURE(kill(first));
  ASSERT_NO_FATAL_FAILURE(texts.End());  // on the second
  ASSERT_NO_FATAL_FAILURE(texts.Step());
  first = StartServer({}, first_port);
  ASSERT_NO_FATAL_FAILURE(kill(second));
  ASSERT_NO_FATAL_FAILURE(texts.End());  // on the first, which knows nothing
  ASSERT_NO_FATAL_FAILURE(texts.Step());
}

TEST(FailureTest, ForksContinueParentOnAnyServer) {
  auto server = StartServer();
  const int port = server->port();
  const auto client = Connect(QuickOptions({server->address()}));
  client::SequenceOptions options;
  options.request_id = std::string("parent");
  options.vocabulary_size = Texts::kVocabulary;
  options.seed = 3;
  options.prompt = {1, 2, 3};
  options.parameters.set_frequency_penalty(0.5f);
  auto opened = client->Open(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ReferenceSequence parent(options.parameters, 3, 0, Texts::kVocabulary, Texts::kVocabulary, options.prompt);
  uint64_t key = 0;
  const auto step = [&](client::Sequence* sequence, ReferenceSequence* reference) {
    const auto row = MakeRow(v1::DTYPE_BF16, Texts::kVocabulary, ++key);
    const auto outcomes = client->Step({v1::DTYPE_BF16, Texts::kVocabulary, {{sequence, row.data()}}});
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    ASSERT_TRUE(std::holds_alternative<v1::DrawResult>(outcomes->at(0)));
    EXPECT_EQ(Bits(std::get<v1::DrawResult>(outcomes->at(0))), Bits(reference->Step(v1::DTYPE_BF16, row.data())));
  };
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(step(opened->get(), &parent));

  client::SequenceOptions child;
  child.vocabulary_size = options.vocabulary_size;
  child.seed = 4;
  child.choice_index = 1;
  child.parameters = options.parameters;
  EXPECT_EQ(client->Fork(**opened, child, 7).status().code(), absl::StatusCode::kOutOfRange);
  for (const uint32_t position : {6u, 5u, 2u}) {
    child.request_id = absl::StrCat("child ", position);
    auto forked = client->Fork(**opened, child, position);
    ASSERT_TRUE(forked.ok()) << forked.status();
    EXPECT_EQ((*forked)->position(), position);
    std::vector<uint32_t> tokens = parent.tokens();
    tokens.resize(position);
    ReferenceSequence reference(child.parameters, 4, 1, Texts::kVocabulary, Texts::kVocabulary, {});
    reference.SetTokens(tokens, std::min(position, 3u));
    ASSERT_NO_FATAL_FAILURE(step(forked->get(), &reference));
    server->process().Signal(SIGKILL);
    ASSERT_TRUE(server->process().Wait(kLongestWait).ok());
    server = StartServer({}, port);
    ASSERT_NO_FATAL_FAILURE(step(forked->get(), &reference));
    ASSERT_NO_FATAL_FAILURE(step(opened->get(), &parent));
  }
}

TEST(FailureTest, DrainedServerHandsOverItsStream) {
  const auto first = StartServer();
  const auto second = StartServer();
  const auto client = Connect(QuickOptions({first->address(), second->address()}));
  Texts texts(client.get(), "text");
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  first->process().Signal(SIGTERM);
  // Steps continue while the first server drains, until it is gone.
  const absl::Time deadline = absl::Now() + kLongestWait;
  while (first->process().Running() && absl::Now() < deadline) ASSERT_NO_FATAL_FAILURE(texts.Step());
  const auto code = first->process().Wait(absl::ZeroDuration());
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
}

TEST(FailureTest, AgedStreamsAreReplacedUnnoticed) {
  const auto server = StartServer({"--max_stream_age=100ms"});
  const auto client = Connect(QuickOptions({server->address()}));
  Texts texts(client.get(), "text");
  const absl::Time deadline = absl::Now() + absl::Seconds(1);
  while (absl::Now() < deadline) ASSERT_NO_FATAL_FAILURE(texts.Step());
}

TEST(FailureTest, EvictedHistoriesAreReplayed) {
  const auto server = StartServer({"--max_sequences=4"});
  const auto client = Connect(QuickOptions({server->address()}));
  Texts left(client.get(), "left", 4);  // three with state each
  Texts right(client.get(), "right", 4);
  for (int step = 0; step < 5; ++step) {
    ASSERT_NO_FATAL_FAILURE(left.Step());
    ASSERT_NO_FATAL_FAILURE(right.Step());
  }
}

TEST(FailureTest, FallbackServesUntilServerReturns) {
  const int port = UnusedPort();
  client::ClientOptions options = QuickOptions({absl::StrCat("127.0.0.1:", port)});
  options.in_process = client::InProcessEngine();
  const auto client = Connect(options);
  EXPECT_TRUE(client->in_process());
  Texts texts(client.get(), "text");
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());

  auto server = StartServer({}, port);
  const absl::Time deadline = absl::Now() + kLongestWait;
  while (client->in_process() && absl::Now() < deadline) ASSERT_NO_FATAL_FAILURE(texts.Step());
  EXPECT_FALSE(client->in_process());
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());

  texts.Begin();
  server.reset();
  ASSERT_NO_FATAL_FAILURE(texts.End());
  ASSERT_NO_FATAL_FAILURE(texts.Step());
  EXPECT_TRUE(client->in_process());
}

TEST(FailureTest, FrozenServerCostsDeadlineButNoToken) {
  const auto server = StartServer();
  client::ClientOptions whole = QuickOptions({server->address()});
  whole.rows.form = client::RowFormOptions::Form::kFull;
  const auto client = Connect(std::move(whole));
  // More bytes than the connection can swallow while nothing reads.
  constexpr uint32_t kVocabulary = 1u << 19;
  client::SequenceOptions options;
  options.vocabulary_size = kVocabulary;
  options.parameters.set_presence_penalty(0.5f);
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  const std::vector<float> row(kVocabulary, 1.0f);
  client::Batch batch{v1::DTYPE_F32, kVocabulary, {}};
  for (int i = 0; i < 8; ++i) {
    options.request_id = absl::StrCat("row ", i);
    auto opened = client->Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    sequences.push_back(*std::move(opened));
    batch.rows.push_back({sequences.back().get(), row.data()});
  }
  server->process().Signal(SIGSTOP);
  // Its threads stop one by one; the kernel says when all have.
  siginfo_t stopped;
  ASSERT_EQ(waitid(P_PID, server->process().pid(), &stopped, WSTOPPED), 0);
  client::StepOptions hurried;
  hurried.timeout = absl::Milliseconds(200);
  const absl::Time start = absl::Now();
  auto outcomes = client->Step(batch, hurried);
  EXPECT_LT(absl::Now() - start, kLongestWait);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (const client::RowResult& outcome : *outcomes) {
    const auto* const error = std::get_if<client::RowError>(&outcome);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->reason, v1::DEADLINE_PASSED);
  }
  EXPECT_EQ(sequences[0]->position(), 0);
  server->process().Signal(SIGCONT);
  outcomes = client->Step(batch);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (const client::RowResult& outcome : *outcomes) {
    EXPECT_TRUE(std::holds_alternative<v1::DrawResult>(outcome))
        << client::Describe(std::get<client::RowError>(outcome));
  }
  EXPECT_EQ(sequences[0]->position(), 1);
}

TEST(FailureTest, SecondOwnerSupersedesFirst) {
  const auto server = StartServer();
  client::ClientOptions options = QuickOptions({server->address()});
  options.worker_session = std::string("shared session");
  const auto first = Connect(options);
  client::SequenceOptions contested;
  contested.request_id = std::string("contested");
  contested.vocabulary_size = 8;
  contested.seed = 5;
  contested.parameters.set_presence_penalty(0.5f);
  client::SequenceOptions own = contested;
  own.request_id = std::string("own");
  const float row[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto step = [&](client::Client& client, std::vector<client::Sequence*> sequences) {
    client::Batch batch{v1::DTYPE_F32, 8, {}};
    for (client::Sequence* sequence : sequences) batch.rows.push_back({sequence, row});
    auto outcomes = client.Step(batch);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return *std::move(outcomes);
  };
  const auto of_first = first->Open(contested);
  const auto neighbour = first->Open(own);
  ASSERT_TRUE(of_first.ok() && neighbour.ok());
  step(*first, {of_first->get(), neighbour->get()});

  const auto second = Connect(options);
  const auto of_second = second->Open(contested);
  ASSERT_TRUE(of_second.ok()) << of_second.status();
  const auto lost = step(*first, {of_first->get(), neighbour->get()});
  EXPECT_EQ(std::get<client::RowError>(lost[0]).reason, v1::SUPERSEDED);
  EXPECT_EQ((*of_first)->position(), 1);
  EXPECT_TRUE(std::holds_alternative<v1::DrawResult>(lost[1]));
  const auto won = step(*second, {of_second->get()});
  EXPECT_TRUE(std::holds_alternative<v1::DrawResult>(won[0]));
  EXPECT_EQ((*of_second)->position(), 1);
}

}  // namespace
}  // namespace sortition::testing::failure_test
