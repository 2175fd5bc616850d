// Calls of Health/Watch while nothing changes: they take no time of the thread that ticks, and keep no request.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "service/calls/health_service.h"
#include "tests/server/test_server.h"
#include "tests/support/scale.h"

namespace sortition::server::idle_watches_test {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// A server of this service alone, whose ticks are the test's.
class IdleWatchesTest : public ::testing::Test {
 protected:
  IdleWatchesTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    health_.Register(&builder);
    queue_ = std::make_unique<CallQueue>(&builder);
    server_ = builder.BuildAndStart();
    health_.Start(queue_.get());
    thread_ = std::thread([this] { queue_->Serve(); });
    stub_ = Health::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  ~IdleWatchesTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    queue_->AwaitNoCalls();
    queue_->ShutDown();
    thread_.join();
  }

  // Opens `count` calls, and returns when each has its first message.
  void Open(size_t count, const std::string& service) {
    std::atomic<bool> has_all = false;
    std::thread reader([&] {
      HealthCheckRequest request;
      request.set_service(service);
      for (size_t i = 0; i < count; ++i) {
        auto& context = *contexts_.emplace_back(std::make_unique<grpc::ClientContext>());
        context.set_deadline(CallDeadline());
        watches_.push_back(stub_->Watch(&context, request));
        HealthCheckResponse response;
        EXPECT_TRUE(watches_.back()->Read(&response));
      }
      has_all = true;
    });
    while (!has_all) health_.Tick(absl::Now());
    reader.join();
  }

  // Returns this thread's time for many ticks.
  absl::Duration TicksTake() {
    constexpr int kTicks = 10'000;
    const auto time = [] {
      timespec now;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return absl::DurationFromTimespec(now);
    };
    const absl::Duration begin = time();
    for (int i = 0; i < kTicks; ++i) health_.Tick(absl::Now() + absl::Milliseconds(20 * i));
    return time() - begin;
  }

  static service::Limits ManyWatchers() {
    service::Limits limits;
    limits.connection_watchers = limits.max_watchers;
    return limits;
  }

  std::atomic<bool> serving_ = true;
  HealthService health_{ManyWatchers(), &serving_};
  std::unique_ptr<CallQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::thread thread_;
  std::unique_ptr<Health::Stub> stub_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> watches_;
};

TEST_F(IdleWatchesTest, TicksCostNoMoreThanWithoutThem) {
  const absl::Duration without = TicksTake();
  Open(500, "");
  EXPECT_LT(TicksTake(), 10 * without + absl::Milliseconds(10));
}

uint64_t ResidentBytes() {
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(IdleWatchesTest, LongNamesAreNotKept) {
  if (testing::TestScale() != 1) GTEST_SKIP() << "a sanitizer keeps freed memory";
  constexpr size_t kWatches = 64;
  const std::string name(1 << 20, 'n');
  Open(2, name);
  const uint64_t before = ResidentBytes();
  Open(kWatches, name);
  EXPECT_LT(ResidentBytes(), before + kWatches * name.size() / 4);
}

}  // namespace
}  // namespace sortition::server::idle_watches_test
