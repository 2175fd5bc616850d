// sortitionctl bench against live servers: its counts, its measurements and its end.
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/servers.h"

namespace sortition::testing::bench_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Returns the value of a result in the JSON that bench writes, -1 if it is not there.
double ValueOf(const std::string& json, const std::string& name) {
  const std::string key = absl::StrCat("{\"name\": \"", name, "\", \"value\": ");
  const size_t found = json.find(key);
  return found == std::string::npos ? -1 : std::atof(json.c_str() + found + key.size());
}

class BenchTest : public ::testing::Test {
 protected:
  // Flags of a small load, then the test's.
  static std::vector<std::string> Flags(const process::ServerProcess& server, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"bench", "--target=" + server.address(), "--vocabulary=2000", "--warm_up=100ms",
                                      "--duration=500ms"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  static Ended Run(const process::ServerProcess& server, const std::vector<std::string>& more) {
    return RunProgram(SORTITIONCTL, Flags(server, more));
  }

  static uint64_t TokensOf(const process::ServerProcess& server) {
    const Ended watch = RunProgram(SORTITIONCTL, {"watch", "--count=1", "--json", "--server=" + server.address()}, "w");
    const std::string key = "\"tokens\":\"";
    const size_t found = watch.output.find(key);
    return found == std::string::npos ? 0 : std::strtoull(watch.output.c_str() + found + key.size(), nullptr, 10);
  }

  static void AwaitTokens(const process::ServerProcess& server) {
    const absl::Time deadline = absl::Now() + kLongestWait;
    while (TokensOf(server) == 0) ASSERT_LT(absl::Now(), deadline);
  }

  static std::string PathOf(const std::string& name) {
    return ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name() + "-" + name;
  }
};

TEST_F(BenchTest, ClosedLoopCountsWhatTheServerCounts) {
  const auto server = StartServer();
  const std::string json = PathOf("json");
  const std::string plot = PathOf("svg");
  const Ended bench = Run(*server, {"--streams=3", "--step_rows=4", "--tokens=7", "--temperature=0.8", "--top_k=40",
                                    "--repetition_penalty=1.1", "--interval=100ms", "--plot=" + plot, "--json", json});
  ASSERT_EQ(bench.code, 0) << bench.output;
  EXPECT_THAT(bench.output, HasSubstr("latency/from_call is measured from the call of a step"));
  EXPECT_THAT(bench.output, HasSubstr("latency/corrected"));
  EXPECT_THAT(bench.output, ContainsRegex("TIME/s +STEPS/s +TOKENS/s"));
  EXPECT_THAT(bench.output, HasSubstr("warm-up"));
  const std::string results = ReadFile(json);
  const double sent = ValueOf(results, "rows_sent");
  EXPECT_GT(sent, 3 * 4 * 8);  // several texts
  EXPECT_EQ(ValueOf(results, "rows_drawn"), sent);
  EXPECT_EQ(ValueOf(results, "rows_lost"), 0);
  EXPECT_EQ(ValueOf(results, "rows_in_flight"), 0);
  EXPECT_EQ(static_cast<double>(TokensOf(*server)), sent);
  EXPECT_GT(ValueOf(results, "tokens_per_second"), 0);
  EXPECT_GT(ValueOf(results, "latency_p50/from_call"), 0);
  EXPECT_LE(ValueOf(results, "latency_p50/from_call"), ValueOf(results, "latency_p99_9/from_call"));
  EXPECT_LE(ValueOf(results, "latency_p99_9/from_call"), ValueOf(results, "latency_max/from_call"));
  EXPECT_THAT(results, HasSubstr("\"baseline\": null, \"ratio\": null"));
  EXPECT_THAT(ReadFile(plot), HasSubstr("</svg>"));
}

// A server that stands still for two seconds: an open loop counts every step that was due then.
TEST_F(BenchTest, OpenLoopMeasuresFromTheSchedule) {
  const auto server = StartServer();
  const std::string json = PathOf("json");
  const auto bench =
      StartProgram(SORTITIONCTL, Flags(*server, {"--rate=100", "--warm_up=0s", "--duration=4s", "--json", json}));
  AwaitTokens(*server);
  server->process().Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(2));
  server->process().Signal(SIGCONT);
  const auto code = bench->Wait(kLongestWait);
  ASSERT_TRUE(code.ok() && *code == 0) << OutputOf();
  EXPECT_THAT(OutputOf(), HasSubstr("latency/from_schedule is measured from the moment when a step was due"));
  const std::string results = ReadFile(json);
  // Some 200 of 400 steps were due meanwhile, which waited a second in the mean.
  EXPECT_GT(ValueOf(results, "latency_p90/from_schedule"), 400000);
  EXPECT_GT(ValueOf(results, "latency_max/from_schedule"), 900000);
  EXPECT_LT(ValueOf(results, "control_machine_max"), 900000);  // the server stood still, not the machine
  EXPECT_THAT(results, HasSubstr("\"name\": \"steps_per_second\""));
  EXPECT_THAT(results, HasSubstr("\"baseline\": 100"));
}

TEST_F(BenchTest, StallShowsInCorrectedLatency) {
  const auto server = StartServer();
  const std::string json = PathOf("json");
  const auto bench = StartProgram(SORTITIONCTL, Flags(*server, {"--warm_up=0s", "--duration=4s", "--json", json}));
  AwaitTokens(*server);
  server->process().Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(2));
  server->process().Signal(SIGCONT);
  const auto code = bench->Wait(kLongestWait);
  ASSERT_TRUE(code.ok() && *code == 0) << OutputOf();
  const std::string results = ReadFile(json);
  EXPECT_GT(ValueOf(results, "latency_p90/corrected"), 300000);
  EXPECT_LT(ValueOf(results, "latency_p90/from_call"), 300000);  // one step of all was slow
}

// The load's own process stands still, which to the load looks like a slow server.
TEST_F(BenchTest, HiccupOfItsMachineIsToldApart) {
  const auto server = StartServer();
  const std::string json = PathOf("json");
  const auto bench =
      StartProgram(SORTITIONCTL, Flags(*server, {"--rate=100", "--warm_up=0s", "--duration=4s", "--json", json}));
  AwaitTokens(*server);
  bench->Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(1));
  bench->Signal(SIGCONT);
  const auto code = bench->Wait(kLongestWait);
  ASSERT_TRUE(code.ok() && *code == 0) << OutputOf();
  const std::string results = ReadFile(json);
  EXPECT_GT(ValueOf(results, "latency_max/from_schedule"), 800000);
  EXPECT_GT(ValueOf(results, "control_machine_max"), 800000);
  EXPECT_GT(ValueOf(results, "steps_disturbed"), 80);  // 100 a second were due
  EXPECT_GT(ValueOf(results, "latency_p50/undisturbed"), 0);
  EXPECT_LT(ValueOf(results, "latency_max/undisturbed"), 800000);
}

TEST_F(BenchTest, StepsThatCouldNotBeSentAreCounted) {
  const auto server = StartServer({"--cpu_threads=1"});
  const std::string json = PathOf("json");
  const Ended bench = Run(*server, {"--rate=100000", "--json", json});
  ASSERT_EQ(bench.code, 0) << bench.output;
  EXPECT_GT(ValueOf(ReadFile(json), "steps_unsent"), 0);
  EXPECT_GT(ValueOf(ReadFile(json), "latency_p50/from_schedule"), 50000);
}

TEST_F(BenchTest, ServerThatGoesAwayEndsWith2) {
  const auto server = StartServer();
  const std::string json = PathOf("json");
  const auto bench =
      StartProgram(SORTITIONCTL, Flags(*server, {"--duration=3s", "--timeout=300ms", "--step_rows=2", "--json", json}));
  AwaitTokens(*server);
  server->process().Signal(SIGKILL);
  const auto code = bench->Wait(kLongestWait);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(*code, 2) << OutputOf();
  EXPECT_THAT(OutputOf(), HasSubstr("rows were refused; the first: DEADLINE_PASSED"));
  const std::string results = ReadFile(json);
  EXPECT_GT(ValueOf(results, "rows_refused/deadline_passed"), 0);
  EXPECT_EQ(ValueOf(results, "rows_drawn") + ValueOf(results, "rows_refused/deadline_passed"),
            ValueOf(results, "rows_sent"));
}

TEST_F(BenchTest, ServerThatRefusesRowsEndsWith3) {
  const auto server = StartServer({"--max_message_bytes=65536"});
  const std::string json = PathOf("json");
  const Ended bench = Run(*server, {"--vocabulary=100000", "--rows=full", "--json", json});
  EXPECT_EQ(bench.code, 3) << bench.output;
  EXPECT_THAT(bench.output, HasSubstr("rows were refused; the first: TOO_MANY"));
  EXPECT_EQ(ValueOf(ReadFile(json), "rows_refused/too_many"), ValueOf(ReadFile(json), "rows_sent"));
  EXPECT_EQ(ValueOf(ReadFile(json), "rows_drawn"), 0);
}

TEST_F(BenchTest, ServerThatRefusesTheTextEndsWith3) {
  const auto server = StartServer();
  const std::string parameters = PathOf("parameters");
  WriteFile(parameters, "{\"top_p\": 1.5}");
  const Ended refused = Run(*server, {"--parameters=" + parameters});
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("OUT_OF_RANGE open.parameters.top_p ((0, 1])"));
  EXPECT_EQ(Run(*server, {"--parameters=" + parameters, "--top_p=0.9"}).code, 0);  // flags override the file
}

TEST_F(BenchTest, InterruptPrintsWhatIsThere) {
  const auto server = StartServer();
  const std::string json = PathOf("json");
  const auto bench = StartProgram(SORTITIONCTL, Flags(*server, {"--duration=1h", "--warm_up=0s", "--json", json}));
  AwaitTokens(*server);
  bench->Signal(SIGINT);
  const auto code = bench->Wait(absl::Seconds(20));
  ASSERT_TRUE(code.ok() && *code == 0) << OutputOf();
  EXPECT_THAT(OutputOf(), ContainsRegex("latency_p99/from_call +[0-9]"));
  EXPECT_EQ(ValueOf(ReadFile(json), "rows_drawn"), ValueOf(ReadFile(json), "rows_sent"));
}

// Its steps in flight have an hour.
TEST_F(BenchTest, InterruptDoesNotWaitForStalledServer) {
  const auto server = StartServer();
  const std::string json = PathOf("json");
  const auto bench =
      StartProgram(SORTITIONCTL, Flags(*server, {"--duration=1h", "--timeout=1h", "--warm_up=0s", "--json", json}));
  AwaitTokens(*server);
  server->process().Signal(SIGSTOP);
  bench->Signal(SIGINT);
  const auto code = bench->Wait(absl::Seconds(20));
  server->process().Signal(SIGCONT);
  ASSERT_TRUE(code.ok() && *code == 0) << OutputOf();
  const std::string results = ReadFile(json);
  EXPECT_EQ(ValueOf(results, "rows_drawn") + ValueOf(results, "rows_in_flight"), ValueOf(results, "rows_sent"));
}

TEST_F(BenchTest, MetricsGiveTheServersCostOfARow) {
  const std::string metrics = absl::StrCat("127.0.0.1:", UnusedPort());
  const auto server = StartServer({"--metrics_listen=" + metrics});
  const std::string json = PathOf("json");
  const Ended bench = Run(*server, {"--rows=full", "--shared_memory_bytes=0", "--metrics=" + metrics, "--json", json});
  ASSERT_EQ(bench.code, 0) << bench.output;
  const std::string results = ReadFile(json);
  EXPECT_GT(ValueOf(results, "server_cpu"), 0);
  EXPECT_GT(ValueOf(results, "rows_per_core"), 0);
  EXPECT_GT(ValueOf(results, "bytes_in"), 3000);  // a row of 2,000 bf16, within a step that was in flight
  EXPECT_LT(ValueOf(results, "bytes_in"), 6000);
  EXPECT_GT(ValueOf(results, "bytes_out"), 0);
  const Ended missing = Run(*server, {"--metrics=127.0.0.1:1"});
  EXPECT_EQ(missing.code, 2) << missing.output;
  EXPECT_THAT(missing.output, HasSubstr("http://127.0.0.1:1/metrics"));
}

TEST_F(BenchTest, TransportAndRowFormAreThoseAskedFor) {
  const std::string memory = "unix:" + PathOf("memory");
  const auto server = StartServer({"--memory_listen=" + memory});
  EXPECT_THAT(Run(*server, {}).output, HasSubstr("over a ring"));
  EXPECT_THAT(Run(*server, {"--transport=grpc"}).output, HasSubstr("over gRPC with shared memory"));
  EXPECT_THAT(Run(*server, {"--shared_memory_bytes=0", "--rows=compact(64)"}).output,
              HasSubstr("rows compact(64), over gRPC"));
  const Ended ring = Run(*server, {"--transport=ring", "--target=" + memory});
  EXPECT_EQ(ring.code, 0);
  EXPECT_THAT(ring.output, HasSubstr("over a ring"));
  for (const std::string dtype : {"f32", "f16"}) EXPECT_EQ(Run(*server, {"--dtype=" + dtype}).code, 0);
}

TEST_F(BenchTest, WrongUseExitsWith1AndReason) {
  const auto server = StartServer();
  const auto expect = [&](const std::vector<std::string>& flags, const std::string& reason) {
    const Ended ended = Run(*server, flags);
    EXPECT_EQ(ended.code, 1) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(reason));
  };
  expect({"extra"}, "bench takes no argument");
  expect({"--json"}, "with --json one: the file to write");
  expect({"--streams=0"}, "--streams must be 1 to 1024");
  expect({"--step_rows=5000"}, "--step_rows must be 1 to 4096");
  expect({"--tokens=0"}, "--tokens must be 1 to 1000000");
  expect({"--rate=-1"}, "--rate must be 0 to 1000000");
  expect({"--rate=nan"}, "--rate must be 0 to 1000000");
  expect({"--duration=1ms"}, "--duration must be 100ms to 24h");
  expect({"--warm_up=2h"}, "--warm_up must be 0 to 1h");
  expect({"--interval=1ms"}, "--interval must be 100ms to 60s");
  expect({"--transport=tcp"}, "--transport: tcp is none of auto, grpc and ring");
  expect({"--rows=half"}, "--rows must be auto, full, compact or compact(COUNT)");
  expect({"--dtype=f64"}, "f64");
  expect({"--vocabulary=0"}, "--vocabulary must be 1 to 1048576");
  expect({"--metrics=nowhere"}, "nowhere is no HOST:PORT");
  expect({"--parameters=" + PathOf("absent")}, "cannot read");
  WriteFile(PathOf("wrong"), "{\"heat\": 1}");
  expect({"--parameters=" + PathOf("wrong")}, "heat");
  expect({"--json", "/nonexistent/results.json"}, "cannot write /nonexistent/results.json");
}

TEST_F(BenchTest, ResultsOnAFullDiskAreAnError) {
  const auto server = StartServer();
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--json", "/dev/full"}, std::vector<std::string>{"--plot=/dev/full"}}) {
    const Ended ended = Run(*server, flags);
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.output, HasSubstr("cannot write /dev/full"));
  }
}

TEST_F(BenchTest, NoServerEndsWith2) {
  const Ended ended = RunProgram(
      SORTITIONCTL, {"bench", absl::StrCat("--target=127.0.0.1:", UnusedPort()), "--vocabulary=100", "--timeout=2s"});
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("UNAVAILABLE"));
}

}  // namespace
}  // namespace sortition::testing::bench_test
