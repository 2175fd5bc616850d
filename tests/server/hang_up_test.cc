// SIGHUP: sortitiond looks at its files of policies and of the receipts' key at once, not at the end of their period.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "service/receipt/receipt_key.h"
#include "tests/server/server_process.h"
#include "tests/server/test_server.h"

namespace sortition::server::hang_up_test {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);  // of the looks without a signal
constexpr int kChanges = 8;                           // without a signal, all but the first take a period

class HangUpTest : public ::testing::Test {
 protected:
  ~HangUpTest() override { unlink(path_.c_str()); }

  // Changes the followed file `name`, with a signal after each change, which the process has seen before the next.
  void ExpectSeenAtOnce(const std::string& flag, const std::string& name,
                        const std::function<void(const std::string& path, int number)>& write) {
    write(path_, 0);
    ServerProcess process(
        {{"--listen=127.0.0.1:0", "--metrics_listen=", "--cpu_threads=1", absl::StrCat(flag, path_)}, {}, 0});
    ASSERT_NE(process.Serving("listen"), "");
    const absl::Time begin = absl::Now();
    for (int number = 1; number <= kChanges; ++number) {
      write(path_ + ".new", number);
      std::filesystem::rename(path_ + ".new", path_);
      process.Signal(SIGHUP);
      ASSERT_TRUE(Eventually([&] { return CountReplaced(process, name) >= number; })) << number;
    }
    EXPECT_LT(absl::Now() - begin, (kChanges - 2) * kPeriod);
    process.Signal(SIGTERM);
    EXPECT_EQ(process.Wait(), 0);
  }

 private:
  static int CountReplaced(const ServerProcess& process, const std::string& name) {
    int count = 0;
    for (const std::string& line : process.lines()) {
      count += absl::StrContains(line, absl::StrCat("\"file\":\"", name, "\",\"state\":\"replaced\""));
    }
    return count;
  }

  const std::string path_ = TestPath("hang_up");
};

TEST_F(HangUpTest, PoliciesAreReadAnew) {
  ExpectSeenAtOnce("--policies=", "policies", [](const std::string& path, int number) {
    WriteFile(path, absl::StrCat(R"({"policies": [{"tenant": "*", "defaults": {"topK": )", number + 1, "}}]}"));
  });
}

TEST_F(HangUpTest, ReceiptKeyIsReadAnew) {
  ExpectSeenAtOnce("--receipt_key=", "receipt_key",
                   [](const std::string& path, int) { ASSERT_TRUE(service::WriteNewKey(path).ok()); });
}

}  // namespace
}  // namespace sortition::server::hang_up_test
