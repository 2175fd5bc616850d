// Messages that are refused as a whole: the field that is named, the id that the answer carries, and that the stream
// continues.
#include <gtest/gtest.h>

#include <functional>

#include "tests/service/expect_error.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service {
namespace {

using testing::OpenOf;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

constexpr uint32_t kRefusalVocabulary = 10;

class SessionRefusal : public ::testing::Test {
 protected:
  // A step of one row that a stateless sequence "a" answers with token 7.
  static StepBuilder GoodStep(uint64_t batch_id) {
    StepBuilder step(batch_id, kRefusalVocabulary);
    step.AddRow("a", 1, 0, testing::F32Peak(kRefusalVocabulary, 7));
    return step;
  }
  void ExpectStreamGoesOn() {
    worker_.MustOpen(OpenOf("a", 1, kRefusalVocabulary));
    const auto results = worker_.Run(GoodStep(1000).Build());
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].draw().token(), 7u);
    EXPECT_TRUE(worker_.IsIdle());
    EXPECT_EQ(worker_.sink().size(), 0u);
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
};

TEST_F(SessionRefusal, MalformedBytes) {
  const testing::QuietProtobuf silencer;
  for (const char* bytes : {"\x0a\xff", "\x03", "not a message"}) {
    worker_.SendBytes(bytes);
    ExpectError(worker_.Rejected().error(), Reason::kMalformedMessage, "");
  }
  EXPECT_EQ(engine_.observer().refused(Reason::kMalformedMessage), 3u);
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, IndexIsThatOfMessage) {
  worker_.Send(v1::StreamRequest());
  EXPECT_EQ(worker_.Rejected().message_index(), 2u);
  worker_.Send(testing::CancelOf(1));
  worker_.SendBytes("\x03");
  EXPECT_EQ(worker_.Rejected().message_index(), 4u);
  worker_.MustOpen(OpenOf("a", 1, kRefusalVocabulary));
  worker_.Run(GoodStep(1).Build());
  worker_.Send(v1::StreamRequest());
  EXPECT_EQ(worker_.Rejected().message_index(), 7u);
}

TEST_F(SessionRefusal, NoKind) {
  worker_.Send(v1::StreamRequest());
  ExpectError(worker_.Rejected().error(), Reason::kMissingField, "kind");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, UnknownFieldOfAnOpenIsAnsweredByItsName) {
  v1::StreamRequest request = testing::Message(OpenOf("a", 4, kRefusalVocabulary));
  v1::SamplingParameters& parameters = *request.mutable_open()->mutable_parameters();
  parameters.GetReflection()->MutableUnknownFields(&parameters)->AddVarint(99, 1);
  worker_.Send(request);
  const auto response = worker_.Await([](const auto& message) { return message.has_opened(); });
  ASSERT_TRUE(response.has_value());
  EXPECT_EQ(response->opened().request_id(), "a");
  EXPECT_EQ(response->opened().epoch(), 4u);
  ExpectError(response->opened().error(), Reason::kUnknownField, "open.parameters.#99");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, UnknownFieldOfAStepIsAnsweredByItsBatch) {
  v1::StreamRequest request = GoodStep(5).Build();
  v1::Step& step = *request.mutable_step();
  step.GetReflection()->MutableUnknownFields(&step)->AddVarint(99, 1);
  worker_.Send(request);
  ExpectError(worker_.StepError(5), Reason::kUnknownField, "step.#99");
  request = GoodStep(6).Build();
  request.mutable_step()->mutable_logits()->set_dtype(static_cast<v1::DType>(9));
  worker_.Send(request);
  ExpectError(worker_.StepError(6), Reason::kUnknownEnumValue, "step.logits.dtype");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, UnknownFieldAtTheTop) {
  v1::StreamRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(12, 1);
  worker_.Send(request);
  ExpectError(worker_.Rejected().error(), Reason::kUnknownField, "#12");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, PayloadsWithoutAStep) {
  v1::StreamRequest request = testing::CancelOf(1);
  request.add_payloads("bytes");
  worker_.Send(request);
  ExpectError(worker_.Rejected().error(), Reason::kContradiction, "payloads[0]");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, ParametersOutOfRange) {
  v1::OpenSequence open = OpenOf("a", 1, kRefusalVocabulary);
  open.mutable_parameters()->set_typical_p(2);
  ExpectError(worker_.Open(open).error(), Reason::kOutOfRange, "open.parameters.typical_p");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, WrongStepShape) {
  const std::vector<std::tuple<Reason, std::string, std::function<void(v1::StreamRequest*)>>> cases = {
      {Reason::kSizeMismatch, "payloads[0]", [](auto* r) { r->mutable_payloads(0)->pop_back(); }},
      {Reason::kContradiction, "payloads[1]", [](auto* r) { r->add_payloads("x"); }},
      {Reason::kOutOfRange, "step.priority", [](auto* r) { r->mutable_step()->set_priority(101); }},
      {Reason::kOutOfRange, "step.timeout", [](auto* r) { r->mutable_step()->mutable_timeout(); }},
      {Reason::kMissingField, "step.rows", [](auto* r) { r->mutable_step()->clear_rows(); }},
      {Reason::kOutOfRange, "step.logits.shard.count",
       [](auto* r) { r->mutable_step()->mutable_logits()->mutable_shard(); }},
  };
  worker_.MustOpen(OpenOf("a", 1, kRefusalVocabulary));
  uint64_t batch_id = 0;
  for (const auto& [reason, field, change] : cases) {
    v1::StreamRequest request = GoodStep(++batch_id).Build();
    change(&request);
    worker_.Send(request);
    ExpectError(worker_.StepError(batch_id), reason, field);
    EXPECT_TRUE(worker_.IsIdle());
  }
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, UnansweredBatchIdReused) {
  TestEngine engine = TestEngine::OnFake();
  StreamWorker worker(engine.get());
  worker.MustOpen(OpenOf("a", 1, kRefusalVocabulary));
  worker.Send(GoodStep(1).Build());
  worker.Send(GoodStep(1).Build());
  ExpectError(worker.StepError(1), Reason::kContradiction, "step.batch_id");
  engine.fake().FinishAll();
  EXPECT_EQ(worker.Results(1, 1)[0].draw().token(), 7u);
  worker.Send(GoodStep(1).Build());
  engine.fake().FinishAll();
  EXPECT_EQ(worker.Results(1, 1)[0].draw().token(), 7u) << "answered ids may come again";
  EXPECT_TRUE(worker.IsIdle());
}

TEST(SessionLimits, MessagesOverTheLimit) {
  Limits limits;
  limits.max_message_bytes = 400;
  TestEngine engine = TestEngine::OnCpu(limits);
  StreamWorker worker(engine.get());
  v1::OpenSequence open = OpenOf("a", 1, 100);
  worker.MustOpen(open);
  StepBuilder step(1, 100);
  step.AddRow("a", 1, 0, testing::F32Peak(100, 7));
  worker.Send(step.Build());
  const v1::Error error = worker.StepError(1);
  ExpectError(error, Reason::kTooMany, "message");
  EXPECT_EQ(error.limit(), "<= 400 bytes");
  open.mutable_parameters()->mutable_allowed_token_ids()->Resize(400, 0);
  ExpectError(worker.Open(open).error(), Reason::kTooMany, "message");
  EXPECT_TRUE(worker.IsIdle());
}

TEST(SessionLimits, SequencesOfAStream) {
  Limits limits;
  limits.stream_sequences = 2;
  TestEngine engine = TestEngine::OnCpu(limits);
  StreamWorker worker(engine.get());
  worker.MustOpen(OpenOf("a", 1, 10));
  worker.MustOpen(OpenOf("b", 1, 10));
  ExpectError(worker.Open(OpenOf("c", 1, 10)).error(), Reason::kTooMany, "open");
  worker.MustOpen(OpenOf("b", 2, 10));
  worker.Send(testing::CloseOf("a", 1));
  worker.MustOpen(OpenOf("c", 1, 10));
}

// Longer answers than questions would let a worker fill the server's memory.
TEST(SessionLimits, TooLongNamesAreNotEchoed) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  const std::string name(100'000, 'x');
  worker.Send(testing::Message(OpenOf(name, 1, 10)));
  ExpectError(worker.Rejected().error(), Reason::kTooMany, "open.request_id");
  worker.Send(testing::CloseOf(name, 1));
  ExpectError(worker.Rejected().error(), Reason::kTooMany, "close.request_id");
  worker.Send(testing::CloseOf("", 1));
  ExpectError(worker.Rejected().error(), Reason::kMissingField, "close.request_id");
}

TEST_F(SessionRefusal, UnknownFieldFailsItsRowAlone) {
  for (const char* id : {"a", "b", "c"}) worker_.MustOpen(OpenOf(id, 1, kRefusalVocabulary));
  StepBuilder step(1, kRefusalVocabulary);
  for (const char* id : {"a", "b", "c"}) step.AddRow(id, 1, 0, testing::F32Peak(kRefusalVocabulary, 7));
  v1::StepRow& bad = *step.step().mutable_rows(1);
  bad.GetReflection()->MutableUnknownFields(&bad)->AddVarint(77, 1);
  v1::StepRow& worse = *step.step().mutable_rows(2);
  worse.mutable_verify_draft()->set_mode(static_cast<v1::VerifyMode>(9));
  step.AddTensorRow(testing::F32Peak(kRefusalVocabulary, 7));
  worse.mutable_verify_draft()->add_draft_tokens(7);
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].draw().token(), 7u);
  ExpectError(results[1], Reason::kUnknownField, "step.rows[1].#77");
  ExpectError(results[2], Reason::kUnknownEnumValue, "step.rows[2].verify_draft.mode");
  ExpectStreamGoesOn();
}

}  // namespace
}  // namespace sortition::service
