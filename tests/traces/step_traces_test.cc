// Spans of noted steps at a collector in this process: the parts that a client writes, and the bound on waiting spans.
#include "service/log/step_traces.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "service/log/log.h"
#include "service/observer.h"
#include "tests/support/fake_clock.h"

namespace sortition::server::step_traces_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr uint32_t kSpansOfAStep = 2;  // without batches

// Takes messages of any form, since a program that links opentelemetry-cpp cannot have OTLP's messages a second time.
// While it is held, it answers nothing.
class Collector final : public grpc::CallbackGenericService {
 public:
  Collector() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~Collector() override {
    Release();
    server_->Shutdown();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void Hold() {
    absl::MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    std::vector<Call*> waiting;
    {
      absl::MutexLock lock(&mutex_);
      held_ = false;
      waiting.swap(waiting_);
    }
    for (Call* call : waiting) call->Answer();
  }
  // All bytes that have come.
  std::string bytes() const {
    absl::MutexLock lock(&mutex_);
    return bytes_;
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Call(this); }

 private:
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Call(Collector* collector) : collector_(*collector) { StartRead(&message_); }
    void Answer() { StartWriteAndFinish(&answer_, {}, grpc::Status::OK); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::CANCELLED);
      collector_.Take(message_, this);
    }
    void OnDone() override { delete this; }

   private:
    Collector& collector_;
    grpc::ByteBuffer message_;
    const grpc::Slice nothing_;
    grpc::ByteBuffer answer_{&nothing_, 1};
  };

  void Take(const grpc::ByteBuffer& message, Call* call) {
    std::vector<grpc::Slice> slices;
    (void)message.Dump(&slices);
    {
      absl::MutexLock lock(&mutex_);
      for (const grpc::Slice& slice : slices) {
        bytes_.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
      if (held_) return waiting_.push_back(call);
    }
    call->Answer();
  }

  int port_ = 0;
  mutable absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Call*> waiting_ ABSL_GUARDED_BY(mutex_);
  std::string bytes_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

class SpanCounter : public service::NullObserver {
 public:
  void Count(service::Counter counter, uint64_t count) override {
    (counter == service::Counter::kSpansLost ? lost_ : exported_).fetch_add(static_cast<uint32_t>(count));
  }
  uint32_t lost() const { return lost_.load(); }
  uint32_t exported() const { return exported_.load(); }

 private:
  std::atomic<uint32_t> lost_ = 0;
  std::atomic<uint32_t> exported_ = 0;
};

class StepTracesTest : public ::testing::Test {
 protected:
  std::unique_ptr<StepTraces> Start(uint32_t most_waiting) {
    TraceSettings settings;
    settings.endpoint = collector_.address();
    settings.most_waiting = most_waiting;
    settings.timeout = absl::Seconds(20);
    auto traces = StepTraces::Start(settings, &clock_, &counter_, &log_);
    EXPECT_TRUE(traces.ok()) << traces.status();
    return *std::move(traces);
  }

  service::NotedStep Step(std::string_view tracestate = "", std::string_view session = "worker") {
    service::NotedStep step;
    step.traced = true;
    step.worker_session = session;
    step.traceparent = kTraceparent;
    step.tracestate = tracestate;
    step.rows = 1;
    step.arrived = step.ready = step.answered = clock_.Now();
    return step;
  }

  Collector collector_;
  sortition::testing::FakeClock clock_;
  SpanCounter counter_;
  Log log_{LogLevel::kError, [](std::string_view) {}};
};

TEST_F(StepTracesTest, TraceStateTravelsIfItHasTheForm) {
  const std::string hostile[] = {"hostile\"};<script>\n\x1b[31m",
                                 "hostile" + std::string(500, '='),
                                 "hostile,,,,",
                                 "a=hostile,a=\x01",
                                 "A=hostile",
                                 "hostile"};
  {
    const auto traces = Start(2048);
    traces->Add(Step("vendor=1,other=two"));
    for (const std::string& state : hostile) traces->Add(Step(state));
  }
  EXPECT_EQ(counter_.exported(), kSpansOfAStep * (1 + std::size(hostile)));
  EXPECT_THAT(collector_.bytes(), HasSubstr("vendor=1,other=two"));
  EXPECT_THAT(collector_.bytes(), Not(HasSubstr("hostile")));
}

TEST_F(StepTracesTest, NamesAreTexts) {
  const std::string name = "\"};<script>\n\x1b[31m\xe2\x80\xae";
  Start(2048)->Add(Step("", name));
  EXPECT_THAT(collector_.bytes(), HasSubstr(name));
}

TEST_F(StepTracesTest, RefusedStepSaysWhy) {
  service::NotedStep step = Step();
  step.refused_rows = 1;
  step.refused_for = "OVERLOADED";
  Start(2048)->Add(step);
  EXPECT_THAT(collector_.bytes(), HasSubstr("error.type"));
  EXPECT_THAT(collector_.bytes(), HasSubstr("OVERLOADED"));
}

// The collector answers nothing: spans beyond the bound are lost at once, and Add does not wait.
TEST_F(StepTracesTest, SpansBeyondTheBoundAreLostAtOnce) {
  constexpr uint32_t kMost = 8;
  constexpr uint32_t kSteps = 1000;
  collector_.Hold();
  auto traces = Start(kMost);
  for (uint32_t i = 0; i < kSteps; ++i) traces->Add(Step());
  EXPECT_EQ(counter_.exported(), 0u);
  EXPECT_EQ(counter_.lost(), kSpansOfAStep * kSteps - kMost);
  collector_.Release();
  traces.reset();
  EXPECT_EQ(counter_.exported(), kMost);
  EXPECT_EQ(counter_.exported() + counter_.lost(), kSpansOfAStep * kSteps);
}

}  // namespace
}  // namespace sortition::server::step_traces_test
