// Trace contexts of steps: those that are refused, and those that reach the log.
#include "service/wire/trace.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "service/limits.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service::trace_test {
namespace {

using testing::F32Bytes;
using testing::F32Peak;
using testing::MakeOpen;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

// The example of the W3C recommendation.
constexpr char kSampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kNotSampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

v1::TraceContext Trace(const std::string& traceparent, const std::string& tracestate = "") {
  v1::TraceContext trace;
  trace.set_traceparent(traceparent);
  trace.set_tracestate(tracestate);
  return trace;
}

TEST(Trace, FollowsTheRecommendation) {
  for (const std::string& good : {std::string(kSampled), std::string(kNotSampled),
                                  "cc" + std::string(kSampled + 2) + "-what-a-later-version-adds"}) {
    EXPECT_FALSE(CheckTrace(Trace(good))) << good;
  }
  EXPECT_TRUE(IsSampled(Trace(kSampled)));
  EXPECT_FALSE(IsSampled(Trace(kNotSampled)));
  EXPECT_TRUE(IsSampled(Trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ab")));
}

TEST(Trace, MalformedContextIsRefusedByName) {
  const std::string good = kSampled;
  std::vector<std::string> wrong = {
      "x",
      good.substr(0, good.size() - 1),
      good + "-more",
      good + "0",
      "ff" + good.substr(2),
      "cc" + good.substr(2) + "0",
      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
  };
  for (size_t at = 0; at < good.size(); ++at) {
    wrong.push_back(good);
    wrong.back()[at] = 'g';
  }
  for (const std::string& text : wrong) {
    const std::optional<Refusal> refusal = CheckTrace(Trace(text));
    ASSERT_TRUE(refusal) << text;
    EXPECT_EQ(refusal->reason, Reason::kOutOfRange) << text;
    EXPECT_EQ(refusal->field, "step.trace.traceparent");
  }
  EXPECT_EQ(CheckTrace(Trace(""))->reason, Reason::kMissingField);
  EXPECT_EQ(CheckTrace(Trace(std::string(kMaxNameBytes + 1, '0')))->reason, Reason::kTooMany);
}

TEST(Trace, TraceStateIsBounded) {
  EXPECT_FALSE(CheckTrace(Trace(kSampled, std::string(kMaxTraceStateBytes, 'a'))));
  const std::optional<Refusal> refusal = CheckTrace(Trace(kSampled, std::string(kMaxTraceStateBytes + 1, 'a')));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "step.trace.tracestate");
  EXPECT_EQ(refusal->limit, "max_trace_state_bytes 512");
}

class SessionTrace : public ::testing::Test {
 protected:
  static constexpr uint32_t kVocabulary = 64;

  v1::StreamRequest Step(const std::string& traceparent) {
    StepBuilder builder(7, kVocabulary);
    builder.AddRow("good", 1, 0, F32Peak(kVocabulary, 3));
    builder.AddRow("unknown", 1, 0, F32Peak(kVocabulary, 3));
    *builder.step().mutable_trace() = Trace(traceparent, "vendor=1");
    return builder.Build();
  }

  TestEngine engine_ = TestEngine::OnFake();
  StreamWorker worker_{engine_.get()};
};

TEST_F(SessionTrace, SampledStepIsLoggedWhenAnswered) {
  worker_.MustOpen(MakeOpen("good", 1, kVocabulary));
  worker_.Send(Step(kSampled));
  EXPECT_TRUE(engine_.event_log().steps().empty()) << "not answered yet";
  engine_.clock().Advance(absl::Milliseconds(3));
  engine_.fake().FinishAll();
  worker_.Results(7, 2);
  ASSERT_EQ(engine_.event_log().steps().size(), 1u);
  EXPECT_EQ(engine_.event_log().steps()[0],
            absl::StrCat("worker 7 rows=2 refused=1 latency=3ms ", kSampled,
                         " vendor=1 runs=1 refused_for=UNKNOWN_SEQUENCE temperature=1 top_p=1 top_k=0"));
}

TEST_F(SessionTrace, StepRefusedAsAWholeIsNoted) {
  worker_.MustOpen(MakeOpen("good", 1, kVocabulary));
  v1::StreamRequest step = Step(kSampled);
  step.mutable_step()->set_priority(kMaxPriority + 1);
  worker_.Send(step);
  EXPECT_EQ(worker_.StepError(7).reason(), v1::OUT_OF_RANGE);
  ASSERT_EQ(engine_.event_log().steps().size(), 1u);
  EXPECT_EQ(engine_.event_log().steps()[0], absl::StrCat("worker 7 rows=2 refused=2 latency=0 ", kSampled,
                                                         " vendor=1 runs=0 refused_for=OUT_OF_RANGE"));
}

TEST_F(SessionTrace, RefusedStepWithoutSampledContextIsNotNoted) {
  worker_.MustOpen(MakeOpen("good", 1, kVocabulary));
  for (const char* traceparent : {kNotSampled, "00-trace", "01"}) {
    v1::StreamRequest step = Step(traceparent);
    step.mutable_step()->set_priority(kMaxPriority + 1);
    worker_.Send(step);
    EXPECT_FALSE(worker_.StepError(7).field().empty());
  }
  EXPECT_TRUE(engine_.event_log().steps().empty());
}

TEST_F(SessionTrace, OptionsThatDifferAreLeftOut) {
  v1::OpenSequence open = MakeOpen("good", 1, kVocabulary);
  open.mutable_parameters()->set_top_k(5);
  worker_.MustOpen(open);
  worker_.MustOpen(MakeOpen("unknown", 1, kVocabulary));
  worker_.Send(Step(kSampled));
  engine_.fake().FinishAll();
  worker_.Results(7, 2);
  ASSERT_EQ(engine_.event_log().steps().size(), 1u);
  EXPECT_EQ(engine_.event_log().steps()[0],
            absl::StrCat("worker 7 rows=2 refused=0 latency=0 ", kSampled, " vendor=1 runs=1"));
}

TEST_F(SessionTrace, UnsampledStepIsNotLogged) {
  worker_.MustOpen(MakeOpen("good", 1, kVocabulary));
  worker_.Send(Step(kNotSampled));
  engine_.fake().FinishAll();
  EXPECT_EQ(worker_.Results(7, 2).size(), 2u);
  EXPECT_TRUE(engine_.event_log().steps().empty());
}

TEST_F(SessionTrace, MalformedContextRefusesStep) {
  worker_.MustOpen(MakeOpen("good", 1, kVocabulary));
  worker_.Send(Step("00-trace"));
  EXPECT_EQ(worker_.StepError(7).field(), "step.trace.traceparent");
}

TEST_F(SessionTrace, OpenLogsTheModel) {
  v1::OpenSequence open = MakeOpen("good", 1, kVocabulary);
  open.set_model("llama");
  worker_.MustOpen(open);
  ASSERT_EQ(engine_.event_log().sequences().size(), 1u);
  EXPECT_EQ(engine_.event_log().sequences()[0], "worker model=llama vocabulary=64");
  open.set_model(std::string(kMaxNameBytes + 1, 'm'));
  EXPECT_EQ(worker_.Open(open).error().field(), "open.model");
}

}  // namespace
}  // namespace sortition::service::trace_test
