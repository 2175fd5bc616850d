// Messages that are refused as a whole: the field that is named, the id that the answer carries, and that the stream
// continues.

#include <functional>

#include "tests/support/session.h"

namespace sortition::service::session_refusal_test {
namespace {

constexpr uint32_t kVocabulary = 10;

class SessionRefusal : public ::testing::Test {
 protected:
  // A step of one row that a stateless sequence "a" answers with token 7.
  static StepBuilder GoodStep(uint64_t batch_id) {
    StepBuilder step(batch_id, kVocabulary);
    step.AddRow("a", 1, 0, F32Peak(kVocabulary, 7));
    return step;
  }
  void ExpectStreamGoesOn() {
    worker_.MustOpen(MakeOpen("a", 1, kVocabulary));
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
  worker_.Send(testing::MakeCancel(1));
  worker_.SendBytes("\x03");
  EXPECT_EQ(worker_.Rejected().message_index(), 4u);
  worker_.MustOpen(MakeOpen("a", 1, kVocabulary));
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
  v1::StreamRequest request = testing::Message(MakeOpen("a", 4, kVocabulary));
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
  v1::StreamRequest request = testing::MakeCancel(1);
  request.add_payloads("bytes");
  worker_.Send(request);
  ExpectError(worker_.Rejected().error(), Reason::kContradiction, "payloads[0]");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, ParametersOutOfRange) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.mutable_parameters()->set_typical_p(2);
  ExpectError(worker_.Open(open).error(), Reason::kOutOfRange, "open.parameters.typical_p");
  open.mutable_parameters()->clear_typical_p();
  open.mutable_parameters()->set_top_n_sigma(-1);
  const v1::Error error = worker_.Open(open).error();
  ExpectError(error, Reason::kOutOfRange, "open.parameters.top_n_sigma");
  EXPECT_EQ(error.limit(), "0 or 0.01..100");
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
  worker_.MustOpen(MakeOpen("a", 1, kVocabulary));
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

TEST_F(SessionRefusal, ReusedBatchIdIsRejectedByIndex) {
  TestEngine engine = TestEngine::OnFake();
  StreamWorker worker(engine.get());
  worker.MustOpen(MakeOpen("a", 1, kVocabulary));
  worker.Send(GoodStep(1).Build());
  worker.Send(GoodStep(1).Build());
  v1::Rejected rejected = worker.Rejected();
  EXPECT_EQ(rejected.message_index(), 4u);
  ExpectError(rejected.error(), Reason::kContradiction, "step.batch_id");
  // A row with another mistake is refused too.
  v1::StreamRequest wrong = GoodStep(1).Build();
  wrong.mutable_step()->mutable_logits()->set_dtype(static_cast<v1::DType>(9));
  worker.Send(wrong);
  rejected = worker.Rejected();
  EXPECT_EQ(rejected.message_index(), 5u);
  ExpectError(rejected.error(), Reason::kUnknownEnumValue, "step.logits.dtype");
  engine.fake().FinishAll();
  EXPECT_EQ(worker.Results(1, 1)[0].draw().token(), 7u);
  worker.Send(GoodStep(1).Build());
  engine.fake().FinishAll();
  EXPECT_EQ(worker.Results(1, 1)[0].draw().token(), 7u) << "answered ids may come again";
  EXPECT_TRUE(worker.IsIdle());
}

TEST(SessionLimits, MessagesOverTheLimit) {
  TestEngine engine = TestEngine::OnCpu({.max_message_bytes = 400});
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, 100);
  worker.MustOpen(open);
  StepBuilder step(1, 100);
  step.AddRow("a", 1, 0, F32Peak(100, 7));
  worker.Send(step.Build());
  const v1::Error error = worker.StepError(1);
  ExpectError(error, Reason::kTooMany, "message");
  EXPECT_EQ(error.limit(), "max_message_bytes 400");
  open.mutable_parameters()->mutable_allowed_token_ids()->Resize(400, 0);
  ExpectError(worker.Open(open).error(), Reason::kTooMany, "message");
  EXPECT_TRUE(worker.IsIdle());
}

TEST(SessionLimits, SequencesOfAStream) {
  TestEngine engine = TestEngine::OnCpu({.stream_sequences = 2});
  StreamWorker worker(engine.get());
  worker.MustOpen(MakeOpen("a", 1, 10));
  worker.MustOpen(MakeOpen("b", 1, 10));
  ExpectError(worker.Open(MakeOpen("c", 1, 10)).error(), Reason::kTooMany, "open");
  worker.MustOpen(MakeOpen("b", 2, 10));
  worker.Send(testing::MakeClose("a", 1));
  worker.MustOpen(MakeOpen("c", 1, 10));
}

// Longer answers than questions would let a worker fill the server's memory.
TEST(SessionLimits, TooLongNamesAreNotEchoed) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  const std::string name(100'000, 'x');
  worker.Send(testing::Message(MakeOpen(name, 1, 10)));
  ExpectError(worker.Rejected().error(), Reason::kTooMany, "open.request_id");
  worker.Send(testing::MakeClose(name, 1));
  ExpectError(worker.Rejected().error(), Reason::kTooMany, "close.request_id");
  worker.Send(testing::MakeClose("", 1));
  ExpectError(worker.Rejected().error(), Reason::kMissingField, "close.request_id");
}

TEST_F(SessionRefusal, UnknownFieldFailsItsRowAlone) {
  for (const char* id : {"a", "b", "c"}) worker_.MustOpen(MakeOpen(id, 1, kVocabulary));
  StepBuilder step(1, kVocabulary);
  for (const char* id : {"a", "b", "c"}) step.AddRow(id, 1, 0, F32Peak(kVocabulary, 7));
  v1::StepRow& bad = *step.step().mutable_rows(1);
  bad.GetReflection()->MutableUnknownFields(&bad)->AddVarint(77, 1);
  v1::StepRow& worse = *step.step().mutable_rows(2);
  worse.mutable_verify_draft()->set_mode(static_cast<v1::VerifyMode>(9));
  step.AddTensorRow(F32Peak(kVocabulary, 7));
  worse.mutable_verify_draft()->add_draft_tokens(7);
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].draw().token(), 7u);
  ExpectError(results[1], Reason::kUnknownField, "step.rows[1].#77");
  ExpectError(results[2], Reason::kUnknownEnumValue, "step.rows[2].verify_draft.mode");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, UnknownEnumValueFailsItsRowAlone) {
  for (const char* id : {"a", "b", "c"}) worker_.MustOpen(MakeOpen(id, 1, kVocabulary));
  const std::string peak = F32Peak(kVocabulary, 7);
  StepBuilder step(1, kVocabulary);
  v1::VerifyDraft& chain = *step.AddRow("a", 1, 0, peak).mutable_verify_draft();
  chain.add_draft_tokens(7);
  chain.set_mode(static_cast<v1::VerifyMode>(8));
  step.AddTensorRow(peak);
  v1::VerifyTree& tree = *step.AddRow("b", 1, 0, peak).mutable_verify_tree();
  tree.add_draft_tokens(7);
  tree.add_parents(-1);
  tree.set_mode(static_cast<v1::VerifyMode>(-1));
  step.AddTensorRow(peak);
  step.AddRow("c", 1, 0, peak);
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 3u);
  ExpectError(results[0], Reason::kUnknownEnumValue, "step.rows[0].verify_draft.mode");
  EXPECT_EQ(results[0].error().limit(), "sortition.v1.VerifyMode");
  ExpectError(results[1], Reason::kUnknownEnumValue, "step.rows[1].verify_tree.mode");
  EXPECT_EQ(results[2].draw().token(), 7u);
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, UnknownFieldInMaskFailsItsRowAlone) {
  for (const char* id : {"a", "b", "c"}) worker_.MustOpen(MakeOpen(id, 1, kVocabulary));
  const std::string peak = F32Peak(kVocabulary, 7);
  const auto add_unknown = [](google::protobuf::Message* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddVarint(77, 1);
  };
  StepBuilder step(1, kVocabulary);
  add_unknown(step.AddRow("a", 1, 0, peak).mutable_mask()->mutable_allowed_tokens());
  v1::VerifyDraft& chain = *step.AddRow("b", 1, 0, peak).mutable_verify_draft();
  chain.add_draft_tokens(7);
  chain.set_mode(v1::VERIFY_MODE_REJECTION);
  add_unknown(chain.add_sparse_probabilities());
  step.AddTensorRow(peak);
  step.AddRow("c", 1, 0, peak);
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 3u);
  ExpectError(results[0], Reason::kUnknownField, "step.rows[0].mask.allowed_tokens.#77");
  ExpectError(results[1], Reason::kUnknownField, "step.rows[1].verify_draft.sparse_probabilities[0].#77");
  EXPECT_EQ(results[2].draw().token(), 7u);
}

TEST_F(SessionRefusal, UnknownEnumValueOfAnOpenNamesIt) {
  v1::OpenSequence open = MakeOpen("a", 4, kVocabulary);
  open.mutable_parameters()->set_nan_policy(static_cast<v1::NanPolicy>(8));
  ExpectError(worker_.Open(open).error(), Reason::kUnknownEnumValue, "open.parameters.nan_policy");
  open.mutable_parameters()->clear_nan_policy();
  open.mutable_parameters()->mutable_chain()->set_preset(static_cast<v1::Chain::Preset>(8));
  ExpectError(worker_.Open(open).error(), Reason::kUnknownEnumValue, "open.parameters.chain.preset");
  v1::StreamRequest fork;
  *fork.mutable_fork()->mutable_child() = open;
  ExpectError(worker_.Fork(fork).error(), Reason::kUnknownEnumValue, "fork.child.parameters.chain.preset");
  ExpectStreamGoesOn();
}

// protobuf takes the last kind and drops the first.
TEST_F(SessionRefusal, TwoKindsAreRejected) {
  worker_.SendBytes(testing::MakeCancel(1).SerializeAsString() + GoodStep(5).Build().SerializeAsString());
  const v1::Rejected rejected = worker_.Rejected();
  EXPECT_EQ(rejected.message_index(), 2u);
  ExpectError(rejected.error(), Reason::kContradiction, "step");
  const std::string open = testing::Message(MakeOpen("a", 1, kVocabulary)).SerializeAsString();
  worker_.SendBytes(open + open);
  ExpectError(worker_.Rejected().error(), Reason::kContradiction, "open");
  ExpectStreamGoesOn();
}

TEST_F(SessionRefusal, FieldSetTwiceIsAnsweredByItsName) {
  // An open with the field `field` of its OpenSequence appended.
  const auto open_with = [](const std::string& field) {
    const std::string open = MakeOpen("a", 4, kVocabulary).SerializeAsString() + field;
    return std::string("\x12") + static_cast<char>(open.size()) + open;
  };
  // parameters.temperature twice, in two messages that protobuf would merge.
  worker_.SendBytes(open_with(std::string("\x22\x00\x22\x05\x0d\x00\x00\x80\x3f", 9)));
  const auto response = worker_.Await([](const auto& message) { return message.has_opened(); });
  EXPECT_EQ(response.value().opened().request_id(), "a");
  ExpectError(response->opened().error(), Reason::kContradiction, "open.parameters");
  ExpectStreamGoesOn();
}

// A step of three rows. The second one has two tasks.
class SessionTwoTasks : public SessionRefusal {
 protected:
  std::string StepOfThree(bool places_third) {
    StepBuilder step(1, kVocabulary);
    for (const char* id : {"a", "b", "c"}) {
      worker_.MustOpen(MakeOpen(id, 1, kVocabulary));
      step.AddRow(id, 1, 0, F32Peak(kVocabulary, 7));
    }
    if (places_third) step.step().mutable_rows(2)->set_tensor_row(2);
    v1::StreamRequest request = step.Build();
    // The field `score`, with the token 3, before a `draw`: the row is as long as one with both.
    v1::StepRow& row = *request.mutable_step()->mutable_rows(1);
    row.mutable_score()->add_tokens(3);
    const std::string score = row.SerializeAsString();
    row.mutable_draw();
    std::string both = score + std::string("\x2a\x00", 2);
    // Stands in for the row's bytes, which protobuf writes with one task alone.
    const std::string mark(both.size() - 2, 'x');
    row.Clear();
    row.set_request_id(mark);
    std::string bytes = request.SerializeAsString();
    return bytes.replace(bytes.find(mark) - 2, both.size(), both);
  }
};

TEST_F(SessionTwoTasks, FailTheirRowAlone) {
  worker_.SendBytes(StepOfThree(true));
  const auto results = worker_.Results(1, 3);
  EXPECT_EQ(results.at(0).draw().token(), 7u);
  ExpectError(results.at(1), Reason::kContradiction, "step.rows[1].draw");
  EXPECT_EQ(results.at(1).error().message(), "score is set, too");
  EXPECT_EQ(results.at(2).draw().token(), 7u);
}

// The number of tensor rows that the second row takes is unknown.
TEST_F(SessionTwoTasks, FailTheStepIfALaterRowFollows) {
  worker_.SendBytes(StepOfThree(false));
  ExpectError(worker_.StepError(1), Reason::kContradiction, "step.rows[1].draw");
  ExpectStreamGoesOn();
}

}  // namespace
}  // namespace sortition::service::session_refusal_test
