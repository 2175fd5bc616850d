// Changes of the machine's clock while the server serves: no deadline comes early, and none stays away.
//
// This binary replaces clock_gettime, which every library of the process calls, too: it adds a test's offset to the
// time of day. So waits that follow the time of day are wrong by this offset.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "absl/synchronization/notification.h"
#include "sortition/client.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::set_clock_test {
namespace {

constexpr int64_t kHour = 3600;

std::atomic<int64_t> seconds_ahead = 0;

// Deadlines of these tests pass within a second; a deadline that is off by an hour does not pass before this.
constexpr auto kSoon = std::chrono::seconds(20);

class SetClockTest : public ::testing::TestWithParam<int64_t> {
 protected:
  ~SetClockTest() override { seconds_ahead = 0; }

  static void SetClock() { seconds_ahead = GetParam(); }
  // A sequence, and a step that does not end before the device is released.
  void HoldStep() {
    stream_.Greet();
    stream_.OpenSequence("held");
    stream_.OpenSequence("waits");
    server_.device().Hold();
    ASSERT_TRUE(stream_.SendStep("held", 1));
    server_.device().AwaitBatch();
  }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Config config_ = [] {
    Config config = TestConfig();
    config.limits.max_queue_time = absl::ZeroDuration();
    config.drain_grace = absl::Milliseconds(200);
    return config;
  }();
  TestServer server_{config_};
  std::shared_ptr<grpc::Channel> channel_ = server_.Connect();
  TestStream stream_{channel_};
};

TEST_P(SetClockTest, LogShowsTimeOfDay) {
  SetClock();
  const std::string day = absl::FormatTime("%Y-%m-%dT%H", absl::Now(), absl::UTCTimeZone());
  stream_.Greet();
  ASSERT_TRUE(server_.log_lines().Await("stream_open"));
  const std::string after = absl::FormatTime("%Y-%m-%dT%H", absl::Now(), absl::UTCTimeZone());
  const std::string line = server_.log_lines().all().back();
  EXPECT_TRUE(line.starts_with("{\"time\":\"" + day) || line.starts_with("{\"time\":\"" + after)) << line;
}

TEST_P(SetClockTest, WaitingStepIsRefusedAtDeadline) {
  HoldStep();
  ASSERT_TRUE(stream_.SendStep("waits", 2, "", std::chrono::milliseconds(500)));
  SetClock();
  const v1::StreamResponse response = stream_.ReceiveOne();
  EXPECT_EQ(response.results().rows(0).error().reason(), v1::DEADLINE_PASSED) << response.DebugString();
  EXPECT_GE(std::chrono::steady_clock::now() - start_, std::chrono::milliseconds(500));
  EXPECT_LT(std::chrono::steady_clock::now() - start_, kSoon);
}

TEST_P(SetClockTest, DrainEndsAfterGrace) {
  HoldStep();
  SetClock();
  server_.server().Drain();
  EXPECT_LT(std::chrono::steady_clock::now() - start_, kSoon);
}

TEST_P(SetClockTest, ClientGivesUpAtDeadline) {
  HoldStep();
  client::ClientOptions options;
  options.targets = {server_.target()};
  const auto client = client::Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  sequence.vocabulary_size = 8;
  const auto opened = (*client)->Open(sequence);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const float row[8] = {};
  const auto start = std::chrono::steady_clock::now();
  client::StepOptions hurried;
  hurried.timeout = absl::Milliseconds(500);
  absl::Notification over;
  std::vector<client::RowResult> outcomes;
  const auto done = [&](std::vector<client::RowResult> result) {
    outcomes = std::move(result);
    over.Notify();
  };
  ASSERT_TRUE((*client)->StepAsync({v1::DTYPE_F32, 8, {{opened->get(), row}}}, hurried, done).ok());
  SetClock();
  over.WaitForNotification();
  EXPECT_EQ(std::get<client::RowError>(outcomes[0]).reason, v1::DEADLINE_PASSED);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(400));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
}

INSTANTIATE_TEST_SUITE_P(ByAnHour, SetClockTest, ::testing::Values(-kHour, kHour),
                         [](const auto& test) { return test.param < 0 ? "Back" : "Forward"; });

}  // namespace
}  // namespace sortition::server::set_clock_test

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME)
    time->tv_sec += sortition::server::set_clock_test::seconds_ahead.load(std::memory_order_relaxed);
  return result;
}
