// Receipts from the demonstration's server to sortitionctl verify, right ones and damaged ones, and after a kill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/demo/worker/child_process.h"
#include "client/demo/worker/server_process.h"
#include "service/receipt/receipt_key.h"

namespace sortition::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int code = 0;
  std::string output;
};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// A folder for receipts, and the programs that write and read them.
class ReceiptsTest : public ::testing::Test {
 protected:
  ReceiptsTest() {
    std::string path = ::testing::TempDir() + "/receiptsXXXXXX";
    folder_ = ::mkdtemp(path.data());
  }
  ~ReceiptsTest() override { std::filesystem::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }
  Ended Run(const std::string& program, const std::vector<std::string>& arguments) {
    std::filesystem::remove(At("output"));
    const auto process = demo::ChildProcess::Start({program, arguments, At("output"), std::nullopt});
    EXPECT_TRUE(process.ok()) << process.status();
    const auto code = (*process)->Wait(absl::Seconds(120));
    EXPECT_TRUE(code.ok()) << code.status();
    return {code.ok() ? *code : -1, ReadFile(At("output"))};
  }
  Ended Verify(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "verify");
    return Run(SORTITIONCTL, arguments);
  }
  void WriteDemo() {
    const Ended demo =
        Run(SORTITION_DEMO, {"--server=" SORTITIOND, "--sequences=3", "--tokens=20", "--receipts=" + At("demo")});
    ASSERT_EQ(demo.code, 0) << demo.output;
  }
  std::string keys() const { return "--keys=" + At("demo.key"); }
  std::string seeds() const { return "--seeds=" + At("demo.seeds"); }

  std::string folder_;
};

TEST_F(ReceiptsTest, DemoVerifies) {
  WriteDemo();
  Ended verified = Verify({At("demo"), keys(), seeds(), "--report=" + At("report.html")});
  EXPECT_EQ(verified.code, 0) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("of 3 sequences"));
  EXPECT_THAT(verified.output, HasSubstr("AGREES in what was checked"));
  EXPECT_THAT(verified.output, HasSubstr("row: not checked"));
  EXPECT_THAT(ReadFile(At("report.html")), HasSubstr("AGREES"));
  EXPECT_FALSE(std::filesystem::exists(At("demo.private")));

  // Without more it says what it did not check.
  verified = Verify({At("demo")});
  EXPECT_EQ(verified.code, 0) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("not checked: whose key it is"));
  EXPECT_THAT(verified.output, HasSubstr("without an opened seed"));
}

TEST_F(ReceiptsTest, ChangedByteIsFound) {
  WriteDemo();
  std::string bytes = ReadFile(At("demo"));
  bytes[bytes.size() / 2] ^= 1;
  WriteFile(At("demo"), bytes);
  const Ended verified = Verify({At("demo"), keys(), seeds(), "--json", "--report=" + At("report.html")});
  EXPECT_EQ(verified.code, 4) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("\"verdict\": \"differs\""));
  EXPECT_THAT(ReadFile(At("report.html")), HasSubstr("DIFFERS"));
}

TEST_F(ReceiptsTest, BadInputIsNamed) {
  WriteDemo();
  const std::string bytes = ReadFile(At("demo"));
  WriteFile(At("cut"), bytes.substr(0, bytes.size() - 1));
  Ended verified = Verify({At("cut"), keys()});
  EXPECT_EQ(verified.code, 4);
  EXPECT_THAT(verified.output, HasSubstr("cut_record"));

  WriteFile(At("other.key"), std::string(64, '1'));
  verified = Verify({At("demo"), "--keys=" + At("other.key")});
  EXPECT_EQ(verified.code, 4);
  EXPECT_THAT(verified.output, HasSubstr("unknown_key"));

  WriteFile(At("other.seeds"), "1 000102030405060708090a0b0c0d0e0f\n");
  verified = Verify({At("demo"), "--seeds=" + At("other.seeds")});
  EXPECT_EQ(verified.code, 4);
  EXPECT_THAT(verified.output, HasSubstr("wrong_seed"));

  WriteFile(At("no.seeds"), "a seed\n");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{At("none")},
                                             {},
                                             {At("demo"), "--keys=" + At("none")},
                                             {At("demo"), "--keys=" + At("demo")},
                                             {At("demo"), "--seeds=" + At("no.seeds")},
                                             {At("demo"), "--report=" + At("none/report.html")}}) {
    verified = Verify(arguments);
    EXPECT_EQ(verified.code, 1) << verified.output;
    EXPECT_THAT(verified.output, HasSubstr("sortitionctl: "));
  }
}

// The part of a file that is there after a kill has no signature at its end, and nothing else is wrong with it.
TEST_F(ReceiptsTest, FilesSurviveKill) {
  ASSERT_TRUE(service::WriteNewKey(At("key")).ok());
  auto server = demo::ServerProcess::Start(
      SORTITIOND, {"--receipt_key=" + At("key"), "--receipt_folder=" + folder_, "--receipt_all"}, At("log"));
  ASSERT_TRUE(server.ok()) << server.status() << ReadFile(At("log"));
  const Ended demo = Run(SORTITION_DEMO, {"--connect=" + (*server)->address(), "--sequences=3", "--tokens=40"});
  ASSERT_EQ(demo.code, 0) << demo.output;
  (*server)->process().Signal(SIGKILL);
  (void)(*server)->process().Wait(absl::Seconds(30));
  std::vector<std::string> arguments = {"--json"};
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() == ".bin") arguments.push_back(entry.path());
  }
  ASSERT_EQ(arguments.size(), 2u);
  const Ended verified = Verify(arguments);
  EXPECT_TRUE(verified.code == 0 || verified.code == 5) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("\"problems\": {}"));
  EXPECT_THAT(verified.output, Not(HasSubstr("\"receipts\": 0,")));
}

TEST_F(ReceiptsTest, ServerNamesBadSettings) {
  const auto start = [&](const std::vector<std::string>& flags) { return Run(SORTITIOND, flags); };
  Ended ended = start({"--listen=127.0.0.1:0", "--metrics_listen=", "--receipt_key=" + At("none")});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, HasSubstr("--receipt_key"));
  ended = start({"--receipt_folder=" + folder_});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.output, HasSubstr("--receipt_folder: it needs --receipt_key"));
}

}  // namespace
}  // namespace sortition::testing
