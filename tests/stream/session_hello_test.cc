// The first message of a stream.

#include "kernels/law/version.h"
#include "service/version.h"
#include "tests/support/session.h"

namespace sortition::service::session_hello_test {
namespace {

bool IsWelcome(const v1::StreamResponse& message) { return message.has_welcome(); }

StreamWorker::Options Silent() {
  StreamWorker::Options options;
  options.greets = false;
  return options;
}

TEST(SessionHello, WelcomeDescribesServer) {
  TestEngine engine = TestEngine::OnFake({.max_stream_age = absl::Milliseconds(90500),
                                          .max_message_bytes = 789,
                                          .stream_unanswered_bytes = 1234,
                                          .stream_unanswered_rows = 56});
  StreamWorker worker(engine.get(), Silent());
  worker.Send(testing::Hello("w"));
  const auto response = worker.Await(IsWelcome);
  ASSERT_TRUE(response.has_value());
  const v1::Welcome& welcome = response->welcome();
  EXPECT_EQ(welcome.server_version(), Version());
  ASSERT_EQ(welcome.law_versions_size(), 1);
  EXPECT_EQ(welcome.law_versions(0), law::kLawVersion);
  EXPECT_EQ(welcome.flow_window().unanswered_bytes(), 1234u);
  EXPECT_EQ(welcome.flow_window().unanswered_rows(), 56u);
  EXPECT_EQ(welcome.max_message_bytes(), 789u);
  EXPECT_EQ(welcome.max_stream_age().seconds(), 90);
  EXPECT_EQ(welcome.max_stream_age().nanos(), 500'000'000);
}

TEST(SessionHello, UnboundedAgeIsAbsent) {
  TestEngine engine = TestEngine::OnFake();
  StreamWorker worker(engine.get(), Silent());
  worker.Send(testing::Hello("w"));
  EXPECT_FALSE(worker.Await(IsWelcome)->welcome().has_max_stream_age());
}

TEST(SessionHello, MessagesBeforeItAreRefused) {
  TestEngine engine = TestEngine::OnFake();
  StreamWorker worker(engine.get(), Silent());
  ExpectError(worker.Open(MakeOpen("a", 1, 10)).error(), Reason::kProtocolViolation, "kind");
  StepBuilder step(3, 10);
  step.AddRow("a", 1, 0, F32Peak(10, 1));
  worker.Send(step.Build());
  ExpectError(worker.StepError(3), Reason::kProtocolViolation, "kind");
  ExpectError(worker.Close(testing::MakeClose("a", 1)).error(), Reason::kProtocolViolation, "kind");
  worker.Send(testing::MakeCancel(3));
  const v1::Rejected rejected = worker.Rejected();
  EXPECT_EQ(rejected.message_index(), 4u);
  ExpectError(rejected.error(), Reason::kProtocolViolation, "kind");
  EXPECT_EQ(rejected.error().limit(), "hello");

  worker.Send(testing::Hello("w"));
  EXPECT_TRUE(worker.Await(IsWelcome).has_value());
  worker.MustOpen(MakeOpen("a", 1, 10));
  EXPECT_TRUE(worker.IsIdle());
}

// A worker of a later contract: its fields are named once, and its texts equal a worker's without them.
TEST(SessionHello, IgnoredFieldsAreReportedOnce) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get(), Silent());
  const auto add = [](google::protobuf::Message* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddVarint(77, 1);
  };
  v1::StreamRequest hello = testing::Hello("w");
  testing::IgnoreUnknownFields(hello.mutable_hello());
  add(hello.mutable_hello());
  worker.Send(hello);
  const v1::Welcome welcome = worker.Await(IsWelcome)->welcome();
  ASSERT_EQ(welcome.ignored_fields_size(), 1);
  EXPECT_EQ(welcome.ignored_fields(0), "hello.#77");

  v1::OpenSequence open = MakeOpen("a", 1, 10);
  add(open.mutable_parameters());
  EXPECT_TRUE(worker.Open(open).has_state());
  const auto is_report = [](const v1::StreamResponse& message) { return message.has_ignored_fields(); };
  const auto report = worker.Await(is_report);
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->ignored_fields().fields_size(), 1);
  EXPECT_EQ(report->ignored_fields().fields(0), "open.parameters.#77");
  for (uint64_t step_id = 1; step_id <= 2; ++step_id) {
    StepBuilder step(step_id, 10);
    add(&step.AddRow("a", step_id, 0, F32Peak(10, 7)));
    const auto results = worker.Run(step.Build());
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].draw().token(), 7u);
  }
  EXPECT_EQ(worker.Await(is_report)->ignored_fields().fields(0), "step.rows[].#77");
  EXPECT_EQ(worker.sink().size(), 0u) << "a path is reported once";
  EXPECT_TRUE(worker.IsIdle());
}

TEST(SessionHello, SecondHelloIsRefused) {
  TestEngine engine = TestEngine::OnFake();
  StreamWorker worker(engine.get());
  worker.Send(testing::Hello("other"));
  const v1::Rejected rejected = worker.Rejected();
  EXPECT_EQ(rejected.message_index(), 2u);
  ExpectError(rejected.error(), Reason::kProtocolViolation, "hello");
  worker.MustOpen(MakeOpen("a", 1, 10));
}

TEST(SessionHello, NamesAreBoundedRetryIsAllowed) {
  TestEngine engine = TestEngine::OnFake();
  StreamWorker worker(engine.get(), Silent());
  worker.Send(testing::Hello(""));
  ExpectError(worker.Rejected().error(), Reason::kMissingField, "hello.worker_session");
  worker.Send(testing::Hello(std::string(129, 'w')));
  ExpectError(worker.Rejected().error(), Reason::kTooMany, "hello.worker_session");
  v1::StreamRequest hello = testing::Hello(std::string(128, 'w'));
  hello.mutable_hello()->set_client(std::string(129, 'c'));
  worker.Send(hello);
  ExpectError(worker.Rejected().error(), Reason::kTooMany, "hello.client");
  hello.mutable_hello()->set_client(std::string(128, 'c'));
  worker.Send(hello);
  EXPECT_TRUE(worker.Await(IsWelcome).has_value());
}

}  // namespace
}  // namespace sortition::service::session_hello_test
