// Files that are followed: which are read, and what holds while they cannot be.
#include "service/followed_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/memory/descriptor.h"

namespace sortition::service::followed_files_test {
namespace {

class FollowedFilesTest : public ::testing::Test, public NullObserver, public NullEventLog {
 protected:
  FollowedFilesTest() {
    std::string folder = ::testing::TempDir() + "/followedXXXXXX";
    folder_ = ::mkdtemp(folder.data());
  }
  ~FollowedFilesTest() override { std::filesystem::remove_all(folder_); }

  void Set(Gauge, double value) override { failing_ = value != 0; }
  void FileRead(FollowedFile, std::string_view why) override { read_.emplace_back(why); }

  std::string At(const char* name) const { return folder_ + "/" + name; }
  void Write(const std::string& text) { std::ofstream(At("file"), std::ios::binary | std::ios::trunc) << text; }

  absl::Status Use(const FileReader& read) {
    auto text = read(At("file"));
    if (!text.ok()) return text.status();
    if (*text == "wrong") return absl::InvalidArgumentError("is wrong");
    if (*text == "later" && !is_later_) return absl::UnavailableError("not yet");
    used_ = *std::move(text);
    return absl::OkStatus();
  }

  std::string folder_;
  std::string used_;
  bool is_later_ = false;
  bool failing_ = false;
  std::vector<std::string> read_;  // the events' reasons
  FollowedFiles files_{FollowedFile::kClients, absl::Seconds(1), [this](const FileReader& read) { return Use(read); },
                       this, this};
};

TEST_F(FollowedFilesTest, OnlyRegularFilesAreRead) {
  ASSERT_EQ(mkfifo(At("fifo").c_str(), 0600), 0);
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = At("socket");
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  for (const std::string& other : {At("fifo"), path, folder_, std::string("/dev/zero")}) {
    EXPECT_EQ(ReadRegularFile(other).status().message(), "is no regular file") << other;
  }
  EXPECT_EQ(ReadRegularFile(At("absent")).status().message(), "cannot be read: No such file or directory");
  Write("");
  EXPECT_EQ(ReadRegularFile(At("file")).status().message(), "is empty");
  const std::string text(kMostFileBytes, 'a');
  Write(text);
  EXPECT_EQ(*ReadRegularFile(At("file")), text);
  Write(text + "a");
  EXPECT_EQ(ReadRegularFile(At("file")).status().message(), absl::StrCat("has more than ", kMostFileBytes, " bytes"));
}

TEST_F(FollowedFilesTest, LastGoodContentStays) {
  Write("first");
  ASSERT_TRUE(files_.Start().ok());
  files_.Look();
  EXPECT_TRUE(read_.empty()) << "nothing has changed";
  Write("wrong");
  files_.Look();
  files_.Look();
  EXPECT_EQ(read_, (std::vector<std::string>{"is wrong"})) << "each change is reported once";
  EXPECT_TRUE(failing_);
  EXPECT_EQ(used_, "first");
  Write("other");
  files_.Look();
  EXPECT_EQ(read_.back(), "");
  EXPECT_FALSE(failing_);
  EXPECT_EQ(used_, "other");
}

// The file changes while the process is out of descriptors: once the change was taken for read, and never was.
TEST_F(FollowedFilesTest, FailedReadIsTriedAgain) {
  Write("first");
  ASSERT_TRUE(files_.Start().ok());
  Write("second");
  files_.Look();  // a sanitizer needs descriptors at the first call of an observer
  Write("other");
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  files_.Look();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(read_, (std::vector<std::string>{"", "cannot be read: Too many open files"}));
  EXPECT_TRUE(failing_);
  EXPECT_EQ(used_, "second");
  files_.Look();
  EXPECT_EQ(used_, "other");
  EXPECT_FALSE(failing_);
}

TEST_F(FollowedFilesTest, SameContentIsUsedOnceItCanBe) {
  Write("first");
  ASSERT_TRUE(files_.Start().ok());
  Write("later");
  files_.Look();
  EXPECT_EQ(used_, "first");
  is_later_ = true;
  files_.Look();
  EXPECT_EQ(used_, "later");
  EXPECT_EQ(read_, (std::vector<std::string>{"not yet", ""}));
}

TEST_F(FollowedFilesTest, LooksOnceAPeriod) {
  Write("first");
  ASSERT_TRUE(files_.Start().ok());
  const absl::Time now = absl::UnixEpoch();
  files_.Follow(now);
  Write("other");
  files_.Follow(now + absl::Milliseconds(999));
  EXPECT_EQ(used_, "first");
  files_.Follow(now + absl::Seconds(1));
  EXPECT_EQ(used_, "other");
}

}  // namespace
}  // namespace sortition::service::followed_files_test
