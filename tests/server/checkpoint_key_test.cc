// The file of the checkpoint key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "service/process/process.h"

namespace sortition::server::checkpoint_key_test {
namespace {

using ::testing::HasSubstr;

std::string FileOf(const std::string& content) {
  // Tests run at the same time, each in its process.
  const std::string path = absl::StrCat(::testing::TempDir(), "/checkpoint_", getpid(), ".key");
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(CheckpointKeyFile, NoFileMeansKeyOfProcess) {
  const auto key = ReadCheckpointKey("");
  ASSERT_TRUE(key.ok());
  EXPECT_FALSE(key->has_value());
}

TEST(CheckpointKeyFile, EveryByteCounts) {
  const service::CheckpointOwner owner{"space", "worker", "request", 1};
  // A zero byte does not end the key early.
  std::string secret(40, '\0');
  secret += "\r\n";
  const auto key = ReadCheckpointKey(FileOf(secret));
  ASSERT_TRUE(key.ok() && key->has_value()) << key.status();
  const std::string sealed = (*key)->Seal(owner, {});
  EXPECT_TRUE(std::holds_alternative<service::Checkpoint>(
      service::CheckpointKey::Of(secret)->Open(owner, sealed, "checkpoint")));
  const auto other = ReadCheckpointKey(FileOf(std::string(40, '\0')));
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(std::holds_alternative<service::Refusal>((*other)->Open(owner, sealed, "checkpoint")));
}

TEST(CheckpointKeyFile, UnusableFileNamesItsFlag) {
  for (const std::string& path : {FileOf("too short"), std::string("no/such/file"), ::testing::TempDir()}) {
    const auto key = ReadCheckpointKey(path);
    ASSERT_FALSE(key.ok()) << path;
    EXPECT_THAT(std::string(key.status().message()), HasSubstr("--checkpoint_key"));
  }
}

}  // namespace
}  // namespace sortition::server::checkpoint_key_test
