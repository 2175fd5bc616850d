// A server whose CUDA device faults under load: no token differs, and the process ends so that a new one gets the
// device back. The driver is the tests' own.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/servers.h"
#include "tests/e2e/texts.h"
#include "tests/server/json.h"
#include "tests/server/server_process.h"
#include "tests/server/test_stream.h"

namespace sortition::testing::device_loss_test {
namespace {

using server::JsonText;
using server::ParseJson;
using ::testing::HasSubstr;

constexpr absl::Duration kWait = absl::Seconds(20);

// A stream that never reads its answers, so that its server cannot finish draining while this lives.
class DeafStream {
 public:
  explicit DeafStream(const std::string& address) : stream_(Channel(address)) {
    sender_ = std::thread([this] {
      v1::StreamRequest request;
      request.mutable_close()->set_request_id("r");  // refused: it comes before a hello
      while (stream_.Send(request)) {
      }
    });
  }
  ~DeafStream() {
    stream_.Cancel();
    sender_.join();
    EXPECT_FALSE(stream_.Finish().ok());
  }

 private:
  static std::shared_ptr<grpc::Channel> Channel(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // a fixed window, which some 800 answers fill
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  server::TestStream stream_;
  std::thread sender_;
};

TEST(DeviceLossTest, FaultCostsNoTokenAndExitsCleanly) {
  if (std::string_view(FAKE_CUDA).empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  const std::string fault = server::TestPath("fault");
  const std::string hold = server::TestPath("hold");
  const std::string admin = absl::StrCat("unix:", server::TestPath("admin.sock"));
  for (const std::string& file : {fault, hold}) unlink(file.c_str());
  server::ServerProcess process({{"--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--admin_listen=" + admin,
                                  "--devices=cuda,cpu", "--cpu_threads=1", "--drain_grace=1h", "--stalled_write=1h"},
                                 {"LD_LIBRARY_PATH=" FAKE_CUDA, absl::StrCat("FAKE_CUDA_FAULT_FILE=", fault),
                                  absl::StrCat("FAKE_CUDA_HOLD_FILE=", hold)},
                                 0});
  const auto operate = [&](const std::string& action) {
    EXPECT_EQ(RunProgram(SORTITIONCTL, {"admin", action, "cpu0", "--server=" + admin}).code, 0) << action;
  };
  const std::string address = process.Serving("listen");
  const std::string metrics = process.Serving("metrics");
  const auto other = StartServer({"--devices=cpu"});
  const auto client = Connect(QuickOptions({address, other->address()}));
  Texts texts(client.get(), "text");
  operate("quarantine");  // rows go to the GPU alone
  for (int step = 0; step < 4; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  EXPECT_GE(server::Metric(metrics, "sortition_batches_total{device=\"cuda0\"}"), 1);
  EXPECT_EQ(server::Metric(metrics, "sortition_device_failures_total{device=\"cuda0\"}"), 0);

  {
    const DeafStream deaf(address);
    const absl::Time deadline = absl::Now() + kWait;
    while (server::Metric(metrics, "sortition_errors_total{reason=\"PROTOCOL_VIOLATION\"}") < 1500 &&
           absl::Now() < deadline) {
    }
    // The GPU has the rows, and the CPU serves again, when the fault comes.
    server::WriteFile(hold, "");
    ASSERT_NO_FATAL_FAILURE(texts.Begin());
    while (server::Metric(metrics, "sortition_device_batches{device=\"cuda0\"}") < 1 && absl::Now() < deadline) {
    }
    operate("self-test");
    server::WriteFile(fault, "");
    unlink(hold.c_str());
    ASSERT_NO_FATAL_FAILURE(texts.End());
    for (int step = 0; step < 3; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
    const auto wanted = ParseJson(process.AwaitEvent("restart_wanted"));
    ASSERT_TRUE(wanted);
    EXPECT_EQ(JsonText(*wanted, "device"), "cuda0");
    EXPECT_THAT(JsonText(*wanted, "reason"), HasSubstr("is lost to this process"));
    EXPECT_NE(process.AwaitEvent("drain"), "");
    EXPECT_GE(server::Metric(metrics, "sortition_device_failures_total{device=\"cuda0\"}"), 1);
    EXPECT_GE(server::Metric(metrics, "sortition_rerun_rows_total{device=\"cuda0\"}"), 1);
    EXPECT_EQ(server::Metric(metrics, "sortition_device_failures_total{device=\"cpu0\"}"), 0);
  }
  for (int step = 0; step < 4; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());  // on the other server
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_THAT(process.lines().back(), HasSubstr("a device is lost to this process"));
  unlink(fault.c_str());
}

}  // namespace
}  // namespace sortition::testing::device_loss_test
