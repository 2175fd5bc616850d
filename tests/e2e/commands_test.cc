// The command-line programs against a live server: their output and exit status.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/process/child_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/limits.h"
#include "service/memory/descriptor.h"
#include "service/wire/parameter_table.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/e2e/rank_texts.h"
#include "tests/e2e/servers.h"
#include "tests/vulkan/drivers.h"

namespace sortition::testing::commands_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class SortitionctlTest : public ::testing::Test {
 protected:
  Ended Run(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server->address());
    return RunProgram(SORTITIONCTL, arguments);
  }

  const std::unique_ptr<process::ServerProcess> server = StartServer({"--max_streams=77"});
};

TEST_F(SortitionctlTest, InfoShowsEveryLimitAndParameter) {
  const Ended info = Run({"info"});
  EXPECT_EQ(info.code, 0) << info.output;
  for (const service::LimitDescription& limit : service::DescribeLimits({}))
    EXPECT_THAT(info.output, HasSubstr(std::string(limit.name)));
  for (const service::ParameterDescription& parameter : service::Parameters()) {
    EXPECT_THAT(info.output, ContainsRegex("\n" + std::string(parameter.name) + " .* (sequence|step) +" +
                                           (parameter.in_phases ? "yes " : "no ")));
  }
  EXPECT_THAT(info.output, ContainsRegex("\nverify_draft +modes GREEDY, REJECTION, COUPLED, BLOCK"));
  EXPECT_THAT(info.output, ContainsRegex("\nphases +at most 8"));
  EXPECT_THAT(info.output, Not(HasSubstr("LACKS")));  // the CPU can do all
  EXPECT_THAT(info.output, ContainsRegex("max_streams +77 +streams"));
  EXPECT_THAT(info.output, ContainsRegex("cpu0 +cpu"));

  const Ended json = Run({"info", "--json"});
  EXPECT_EQ(json.code, 0) << json.output;
  EXPECT_THAT(json.output, HasSubstr("\"law_versions\": [\n  1\n ]"));
}

TEST_F(SortitionctlTest, DevicesShowsStateAndReason) {
  const Ended devices = Run({"devices"});
  EXPECT_EQ(devices.code, 0) << devices.output;
  EXPECT_THAT(devices.output, ContainsRegex("cpu0 +cpu +serving +passed [0-9]+ golden rows +1048575 "));
}

TEST(SortitionctlMissingDevicesTest, AbsentDevicesAreShownAsMissing) {
  const auto server = StartServer({"--devices=cuda:no-such,vulkan:no-such,cpu"});
  const auto run = [&](const std::string& command) {
    return RunProgram(SORTITIONCTL, {command, "--server=" + server->address()}).output;
  };
  const std::string devices = run("devices");
  EXPECT_THAT(devices, ContainsRegex("\ncpu0 +cpu +serving +passed [0-9]+ golden rows +1048575 "));
  EXPECT_THAT(devices, ContainsRegex("\nvulkan:no-such +vulkan +missing +[^ ].* +- +- +- +-"));
  EXPECT_THAT(devices, ContainsRegex("\ncuda:no-such +cuda +missing +[^ ].* +- +- +- +-"));
  const std::string info = run("info");
  EXPECT_THAT(info, ContainsRegex("\ncpu0 +cpu +serving +[0-9]+ "));
  EXPECT_THAT(info, ContainsRegex("\ncuda:no-such +cuda +missing +-"));
}

TEST(SortitionctlTargetTest, XdsWithoutBootstrapIsNamed) {
  const std::string row = ::testing::TempDir() + "xds-row.f32";
  WriteFile(row, std::string(8, '\0'));
  unsetenv("GRPC_XDS_BOOTSTRAP");
  unsetenv("GRPC_XDS_BOOTSTRAP_CONFIG");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"sample", row, "--dtype=f32"}, {"health"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--server=xds:///sortition", "--timeout=5s"});
    const Ended ended = RunProgram(SORTITIONCTL, arguments, command[0]);
    EXPECT_EQ(ended.code, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("GRPC_XDS_BOOTSTRAP")) << ended.output;
  }
}

TEST_F(SortitionctlTest, OutputOnAFullDiskIsAnError) {
  for (const std::string command : {"info", "health", "watch --count=1"}) {
    const Ended ended = RunProgram("/bin/sh", {"-c", absl::StrCat("exec ", SORTITIONCTL, " ", command,
                                                                  " --server=", server->address(), " >/dev/full")});
    EXPECT_EQ(ended.code, 1) << command;
    EXPECT_THAT(ended.output, HasSubstr("sortitionctl: cannot write the output")) << command;
  }
}

TEST(SortitiondLogTest, ServerWithItsLogOnAFullDiskServes) {
  const std::string address = absl::StrCat("127.0.0.1:", UnusedPort());
  const auto server = StartProgram(
      "/bin/sh", {"-c", absl::StrCat("exec ", SORTITIOND, " --listen=", address, " --metrics_listen= 2>/dev/full")});
  const absl::Time deadline = absl::Now() + kLongestWait;
  const std::vector<std::string> health = {"health", "--server=" + address, "--timeout=2s"};
  while (RunProgram(SORTITIONCTL, health, "health").code != 0) ASSERT_LT(absl::Now(), deadline);
  const std::string row = ::testing::TempDir() + "full-disk-row.f32";
  WriteFile(row, std::string(8, '\0'));
  EXPECT_EQ(RunProgram(SORTITIONCTL, {"sample", row, "--dtype=f32", "--server=" + address}, "sample").code, 0);
  server->Signal(SIGTERM);
  const auto code = server->Wait(kLongestWait);
  EXPECT_TRUE(code.ok() && *code == 0);
}

TEST_F(SortitionctlTest, HealthPrintsOneLinePerService) {
  const Ended health = Run({"health"});
  EXPECT_EQ(health.code, 0);
  EXPECT_THAT(health.output, ContainsRegex("^server +SERVING\nsortition.v1.SamplingService +SERVING\n"
                                           "sortition.v1.InformationService +SERVING\n$"));
}

TEST(SortitionctlAdminTest, OperatorsActOverAdminSocket) {
  const std::string socket = "unix:" + ::testing::TempDir() + "admin-test.sock";
  const auto server = StartServer({"--admin_listen=" + socket});
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "admin");
    arguments.push_back("--server=" + socket);
    return RunProgram(SORTITIONCTL, arguments);
  };
  EXPECT_THAT(run({"clients"}).output, HasSubstr("CLIENT"));
  EXPECT_THAT(run({"self-test", "cpu0"}).output, HasSubstr("passed"));
  EXPECT_EQ(run({"self-test", "cpu7"}).code, 3);
  const Ended last = run({"quarantine", "cpu0", "to look at it"});
  EXPECT_EQ(last.code, 3);
  EXPECT_THAT(last.output, HasSubstr("no other device serves; drain the server instead"));
  EXPECT_THAT(run({"log-level", "debug"}).output, HasSubstr("was info"));
  EXPECT_THAT(run({"forget", "default"}).output, HasSubstr("forgotten  0"));
  EXPECT_EQ(run({"forget"}).code, 1);
  EXPECT_EQ(run({}).code, 1);
  EXPECT_THAT(run({"drain"}).output, HasSubstr("draining"));
  const auto code = server->process().Wait(absl::Seconds(20));
  EXPECT_TRUE(code.ok() && *code == 0);
}

// The digest of `operators-token`.
TEST(SortitionctlTokenTest, EveryCommandSendsItsTokenFile) {
  const std::string clients = ::testing::TempDir() + "token-clients";
  const std::string token = ::testing::TempDir() + "token";
  WriteFile(clients, "operator sample sha256:ac90208e65ca394da5801030b895c631689ae9b24bd1f302ec5acce041bfe130\n");
  WriteFile(token, "operators-token\n");
  const auto server = StartServer({"--clients=" + clients});
  const std::string row = ::testing::TempDir() + "token-row.f32";
  WriteFile(row, std::string(64, '\0'));
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"info"}, {"watch", "--count=1"}, {"sample", row, "--dtype=f32", "--position=0", "--timeout=2s"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--server=" + server->address());
    const Ended refused = RunProgram(SORTITIONCTL, arguments);
    EXPECT_EQ(refused.code, 3) << command[0];
    EXPECT_THAT(refused.output, HasSubstr("a bearer token or a client certificate is needed"));
    arguments.push_back("--token_file=" + token);
    const Ended served = RunProgram(SORTITIONCTL, arguments);
    EXPECT_EQ(served.code, 0) << served.output;
  }
}

TEST_F(SortitionctlTest, WatchPrintsRequestedNumberOfLines) {
  const Ended watch = Run({"watch", "--count=3", "--interval=100ms"});
  EXPECT_EQ(watch.code, 0) << watch.output;
  EXPECT_EQ(std::count(watch.output.begin(), watch.output.end(), '\n'), 4) << watch.output;
  EXPECT_THAT(watch.output, ContainsRegex("UPTIME/s +STEPS/s +TOKENS/s"));

  const Ended json = Run({"watch", "--count=2", "--interval=100ms", "--json"});
  EXPECT_EQ(std::count(json.output.begin(), json.output.end(), '\n'), 2) << json.output;
  EXPECT_THAT(json.output, HasSubstr("\"tokens\":\"0\""));

  const Ended wrong = Run({"watch", "--interval=1ms"});
  EXPECT_EQ(wrong.code, 3) << wrong.output;
}

TEST_F(SortitionctlTest, WatchCountsSampledTokens) {
  const std::string path = ::testing::TempDir() + "watched-row";
  WriteFile(path, std::string(64, '\0'));
  EXPECT_EQ(Run({"sample", path, "--dtype=f32"}).code, 0);
  EXPECT_THAT(Run({"watch", "--count=1", "--json"}).output, HasSubstr("\"tokens\":\"1\""));
}

TEST_F(SortitionctlTest, WatchCountsCompactRows) {
  const Ended load = Run({"bench", "--rows=compact(64)", "--top_k=40", "--warm_up=0s", "--duration=100ms"});
  EXPECT_EQ(load.code, 0) << load.output;
  EXPECT_THAT(Run({"watch", "--count=1", "--json"}).output, ContainsRegex("\"compact_rows\":\"[1-9]"));
  EXPECT_THAT(Run({"watch", "--count=1"}).output, ContainsRegex("COMPACT/s +REQUIRED/s"));
}

// The same draw from a raw file and from .npy files of each version and type; f32, f16 and bf16.
TEST_F(SortitionctlTest, SampleEqualsReferenceForEveryFileKind) {
  constexpr uint32_t kVocabulary = 500;
  struct Kind {
    v1::DType dtype;
    std::string name;
    std::string npy_type;
  };
  for (const Kind& kind :
       {Kind{v1::DTYPE_F32, "f32", "<f4"}, Kind{v1::DTYPE_F16, "f16", "<f2"}, Kind{v1::DTYPE_BF16, "bf16", "<u2"}}) {
    const auto row = MakeRow(kind.dtype, kVocabulary, 11);
    const std::string bytes(reinterpret_cast<const char*>(row.data()), row.size());
    v1::SamplingParameters parameters;
    parameters.set_temperature(0.7f);
    parameters.set_top_p(0.9f);
    parameters.set_frequency_penalty(0.5f);
    parameters.mutable_raw_logprobs()->set_top(2);
    parameters.mutable_processed_logprobs()->set_top(2);
    ReferenceSequence reference(parameters, 123, 0, kVocabulary, kVocabulary, {1, 2});
    reference.SetTokens({1, 2, 7, 7}, 2);
    const v1::DrawResult expected = reference.Step(kind.dtype, row.data());

    std::vector<std::string> files = {bytes};
    for (const int version : {1, 2}) {
      std::string header = absl::StrCat(
          "{'descr': '", kind.npy_type, "', 'fortran_order': False, 'shape': ",
          version == 1 ? absl::StrCat("(", kVocabulary, ",)") : absl::StrCat("(1, ", kVocabulary, ")"), ", }\n");
      const char size[4] = {static_cast<char>(header.size()), 0, 0, 0};
      files.push_back(std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
                      std::string(size, version == 1 ? 2 : 4) + header + bytes);
    }
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string path = absl::StrCat(::testing::TempDir(), "row-", kind.name, "-", i);
      WriteFile(path, files[i]);
      const std::vector<std::string> common = {
          "sample",       path,           "--dtype=" + kind.name, "--seed=123",
          "--prompt=1,2", "--output=7,7", "--temperature=0.7",    "--top_p=0.9",
          "--logprobs=2", "--raw",        "--processed",          "--frequency_penalty=0.5"};
      const Ended text = Run(common);
      ASSERT_EQ(text.code, 0) << text.output;
      EXPECT_THAT(text.output, HasSubstr(absl::StrCat("token      ", expected.token(), "\n")));
      EXPECT_THAT(text.output, HasSubstr("seed       123  position 4\n"));
      char logprob[64];
      std::snprintf(logprob, sizeof(logprob), "raw        logprob %.6f  rank %u\n", expected.raw().logprob(),
                    expected.raw().rank());
      EXPECT_THAT(text.output, HasSubstr(logprob));
      std::snprintf(logprob, sizeof(logprob), "processed  logprob %.6f  rank %u\n", expected.processed().logprob(),
                    expected.processed().rank());
      EXPECT_THAT(text.output, HasSubstr(logprob));

      std::vector<std::string> with_json = common;
      with_json.push_back("--json");
      const Ended json = Run(with_json);
      EXPECT_THAT(
          json.output,
          HasSubstr(absl::StrCat("{\"seed\": \"123\", \"position\": 4, \"draw\": {\"token\":", expected.token(), ",")));
    }
  }
}

TEST_F(SortitionctlTest, WrongUseExitsWith1AndReason) {
  const std::string path = ::testing::TempDir() + "wrong-row";
  WriteFile(path, std::string(10, '\0'));
  const auto expect = [&](const std::vector<std::string>& arguments, const std::string& reason) {
    const Ended ended = Run(arguments);
    EXPECT_EQ(ended.code, 1) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(reason));
  };
  expect({}, "sortitionctl info");
  expect({"nonsense"}, "sortitionctl info");
  expect({"sample"}, "one argument");
  expect({"sample", path + ".missing", "--dtype=f32"}, "cannot read");
  expect({"sample", path}, "--dtype");
  expect({"sample", path, "--dtype=f64"}, "f64");
  expect({"sample", path, "--dtype=f32"}, "10 bytes are no row");
  expect({"sample", path, "--dtype=f16", "--vocabulary=6"}, "the row has 5 elements");
  expect({"sample", path, "--dtype=f16", "--raw"}, "--logprobs");
  expect({"sample", path, "--dtype=f16", "--ban=x"}, "--ban: x is no token id");
  expect({"sample", path, "--dtype=f16", "--bias=3"}, "--bias: 3 is no TOKEN:BIAS");
  expect({"sample", path, "--dtype=f16", "--position=3", "--prompt=1"}, "exclude each other");
  expect({"info", "--tls_ca=" + path}, "needs --tls");
}

TEST_F(SortitionctlTest, RefusalExitsWith3FieldAndLimit) {
  const std::string path = ::testing::TempDir() + "refused-row";
  WriteFile(path, std::string(16, '\0'));
  const Ended range = Run({"sample", path, "--dtype=f32", "--top_p=1.5"});
  EXPECT_EQ(range.code, 3);
  EXPECT_THAT(range.output, HasSubstr("OUT_OF_RANGE open.parameters.top_p ((0, 1])"));
  WriteFile(path, std::string(16, '\xff'));
  const Ended nan = Run({"sample", path, "--dtype=f32"});
  EXPECT_EQ(nan.code, 3);
  EXPECT_THAT(nan.output, HasSubstr("LOGIT_NAN"));
}

TEST(CommandsTest, SortitionctlWithoutServerExitsWith2) {
  const std::string server = absl::StrCat("--server=127.0.0.1:", UnusedPort());
  const std::string path = ::testing::TempDir() + "lonely-row";
  WriteFile(path, std::string(16, '\0'));
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"info", server},
                                                    {"health", server},
                                                    {"watch", server},
                                                    {"sample", path, "--dtype=f32", server}}) {
    const Ended ended = RunProgram(SORTITIONCTL, arguments);
    EXPECT_EQ(ended.code, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("UNAVAILABLE"));
  }
}

// It takes connections and says nothing.
TEST(CommandsTest, SortitionctlTimesOutOnSilentServer) {
  const service::Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener.get(), 16), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string server = absl::StrCat("--server=127.0.0.1:", ntohs(address.sin_port));
  const std::string path = ::testing::TempDir() + "silent-row";
  WriteFile(path, std::string(16, '\0'));
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"info", server},
                                                    {"health", server},
                                                    {"watch", "--interval=100ms", server},
                                                    {"sample", path, "--dtype=f32", server}}) {
    std::vector<std::string> impatient = arguments;
    impatient.push_back("--timeout=300ms");
    const Ended ended = RunProgram(SORTITIONCTL, impatient);
    EXPECT_EQ(ended.code, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("DEADLINE_EXCEEDED"));
  }
}

TEST(CommandsTest, DemoDrawsSameTextsEachWay) {
  const Ended demo = RunProgram(SORTITION_DEMO, {});
  EXPECT_EQ(demo.code, 0) << demo.output;
  EXPECT_THAT(demo.output, HasSubstr("The server is killed"));
  EXPECT_THAT(demo.output, HasSubstr("\ngreedy: The old woman"));
  EXPECT_THAT(demo.output, ContainsRegex("without a server, in this process +the same\n"));
  EXPECT_THAT(demo.output, ContainsRegex("from the first 64 tokens of each row +the same\n"));
  if (ManifestOf(Drivers().front()).empty()) {
    GTEST_SKIP() << "lavapipe is not installed; Debian's package is " << Drivers().front().package;
  }
  EXPECT_THAT(demo.output, ContainsRegex("--devices=vulkan +the same\n"));
}

TEST(CommandsTest, DemoUsesRunningServer) {
  const auto server = StartServer();
  const Ended demo = RunProgram(SORTITION_DEMO, {"--connect", server->address()});
  EXPECT_EQ(demo.code, 0) << demo.output;
  EXPECT_THAT(demo.output, HasSubstr("by the server at " + server->address()));
  EXPECT_THAT(demo.output, ContainsRegex("from the first 64 tokens of each row +the same\n$"));
  EXPECT_TRUE(server->process().Running());
}

TEST(CommandsTest, DemoErrorsNameTheCause) {
  EXPECT_THAT(RunProgram(SORTITION_DEMO, {"8"}).output, HasSubstr("only flags are understood"));
  const Ended missing = RunProgram(SORTITION_DEMO, {"--connect", absl::StrCat("127.0.0.1:", UnusedPort())});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.output, HasSubstr("sortition_demo: UNAVAILABLE: "));
}

TEST(CommandsTest, ExampleWorkerTokensEqualWithoutServer) {
  const auto server = StartServer();
  const Ended served = RunProgram(EXAMPLE_WORKER, {server->address()});
  EXPECT_EQ(served.code, 0) << served.output;
  EXPECT_THAT(served.output, ContainsRegex("^([0-9]+ [0-9]+ \n)+$"));
  const Ended alone = RunProgram(EXAMPLE_WORKER, {});
  EXPECT_EQ(alone.code, 0);
  EXPECT_EQ(alone.output, served.output);
}

TEST(CommandsTest, ExampleRanksPrintTokensOfWholeRows) {
  const auto server = StartServer();
  const Ended alone = RunProgram(EXAMPLE_WORKER, {});
  constexpr uint32_t kRanks = 4;
  std::vector<Ended> ranks(kRanks);
  OnRanks(kRanks, [&](uint32_t index) {
    const std::string part = absl::StrCat(index, "/", kRanks);
    ranks[index] = RunProgram(EXAMPLE_WORKER, {"--rank", part, "example", server->address()}, absl::StrCat("-", index));
  });
  for (const Ended& rank : ranks) {
    EXPECT_EQ(rank.code, 0) << rank.output;
    EXPECT_EQ(rank.output, alone.output);
  }
}

}  // namespace
}  // namespace sortition::testing::commands_test
