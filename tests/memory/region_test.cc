// Memory regions: a new region is sealed and counted; a released one is unknown at once, and freed after its last
// reader.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "service/memory/region_table.h"
#include "tests/support/expect_error.h"

namespace sortition::service::region_test {
namespace {

using Connection = std::shared_ptr<MemoryConnection>;
using Registered = MemoryConnection::Registered;

constexpr uint64_t kPage = 4096;

Limits SmallLimits() {
  Limits limits;
  limits.connection_memory_bytes = 8 * kPage;
  limits.max_memory_bytes = 10 * kPage;
  limits.connection_regions = 3;
  limits.max_memory_connections = 2;
  return limits;
}

class RegionTest : public ::testing::Test {
 protected:
  Connection Connect() {
    auto connected = table_.Connect([this] { ++notices_; });
    EXPECT_TRUE(std::holds_alternative<Connection>(connected));
    return std::get<Connection>(std::move(connected));
  }
  static uint64_t Register(const Connection& connection, uint64_t bytes) {
    auto made = connection->Register(bytes);
    EXPECT_TRUE(std::holds_alternative<Registered>(made));
    return std::get<Registered>(made).id;
  }
  static Refusal Refused(const Connection& connection, uint64_t bytes) {
    auto made = connection->Register(bytes);
    EXPECT_TRUE(std::holds_alternative<Refusal>(made));
    return std::get<Refusal>(std::move(made));
  }

  SystemEntropy entropy_;
  RegionTable table_{SmallLimits(), &entropy_};
  int notices_ = 0;
};

TEST_F(RegionTest, RegionSizeAndSealsAreFixed) {
  const Connection connection = Connect();
  auto made = connection->Register(kPage + 1);
  const Registered& registered = std::get<Registered>(made);
  EXPECT_EQ(registered.bytes, 2 * kPage) << "whole pages";
  const int fd = registered.descriptor.get();
  EXPECT_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(ftruncate(fd, 3 * kPage), 0);
  EXPECT_NE(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 3 * kPage), 0) << "pages beyond the quota";

  void* const mapped = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  static_cast<char*>(mapped)[kPage] = 7;
  EXPECT_EQ(connection->Find(registered.id)->bytes()[kPage], std::byte{7});
  EXPECT_EQ(munmap(mapped, 2 * kPage), 0);
}

TEST_F(RegionTest, PunchedHolesReadAsZeros) {
  const Connection connection = Connect();
  auto made = connection->Register(2 * kPage);
  const Registered& registered = std::get<Registered>(made);
  ASSERT_EQ(fallocate(registered.descriptor.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * kPage), 0);
  EXPECT_EQ(connection->Find(registered.id)->bytes()[kPage], std::byte{0});
}

TEST_F(RegionTest, ConnectionAndTotalQuotasHold) {
  const Connection one = Connect();
  const Connection two = Connect();
  EXPECT_EQ(Refused(one, 0).reason, Reason::kOutOfRange);
  EXPECT_EQ(Refused(one, 8 * kPage + 1).reason, Reason::kOutOfRange);
  EXPECT_EQ(Refused(one, ~uint64_t{0}).reason, Reason::kOutOfRange);
  const uint64_t first = Register(one, 5 * kPage);
  Register(one, kPage);
  EXPECT_EQ(Refused(one, 3 * kPage).reason, Reason::kOverloaded) << "of the connection's bytes";
  Register(one, kPage);
  EXPECT_EQ(Refused(one, kPage).reason, Reason::kOverloaded) << "of the connection's regions";
  const Refusal all = Refused(two, 4 * kPage);
  EXPECT_EQ(all.reason, Reason::kOverloaded);
  EXPECT_THAT(all.limit, ::testing::HasSubstr("max_memory_bytes"));
  EXPECT_EQ(table_.use().bytes, 7 * kPage);
  EXPECT_EQ(one->Unregister(first), std::nullopt);
  Register(two, 4 * kPage);
  two->Close();
  one->Close();
  EXPECT_EQ(table_.use().bytes, 0u);
  EXPECT_EQ(table_.use().regions, 0u);
  EXPECT_EQ(table_.use().connections, 0u);
}

TEST_F(RegionTest, ConnectionsAreCapped) {
  Connection one = Connect();
  const Connection two = Connect();
  const auto third = table_.Connect([] {});
  ASSERT_TRUE(std::holds_alternative<Refusal>(third));
  EXPECT_EQ(std::get<Refusal>(third).reason, Reason::kOverloaded);
  one.reset();
  Connect();
}

TEST_F(RegionTest, TokensAreSecretsOfTheirConnections) {
  const Connection one = Connect();
  Connection two = Connect();
  EXPECT_EQ(one->token().size(), RegionTable::kTokenBytes);
  EXPECT_NE(one->token(), two->token());
  EXPECT_EQ(table_.Find(one->token()), one);
  EXPECT_EQ(table_.Find(""), nullptr);
  EXPECT_EQ(table_.Find(std::string(RegionTable::kTokenBytes, '\0')), nullptr);
  const std::string token = two->token();
  two.reset();
  EXPECT_EQ(table_.Find(token), nullptr);
}

TEST_F(RegionTest, RegionsArePrivateToConnections) {
  const Connection one = Connect();
  const Connection two = Connect();
  const uint64_t id = Register(one, 1);
  EXPECT_EQ(two->Find(id), nullptr);
  EXPECT_EQ(two->Unregister(id)->reason, Reason::kUnknownRegion);
  EXPECT_NE(Register(two, 1), id);
}

TEST_F(RegionTest, RegionIsFreedAfterLastRead) {
  const Connection connection = Connect();
  const uint64_t id = Register(connection, kPage);
  std::shared_ptr<const Region> reader = connection->Find(id);
  EXPECT_EQ(connection->Unregister(id), std::nullopt);
  EXPECT_EQ(connection->Find(id), nullptr) << "stale at once";
  EXPECT_EQ(connection->Unregister(id)->reason, Reason::kUnknownRegion);
  EXPECT_EQ(notices_, 0);
  EXPECT_EQ(table_.use().bytes, kPage) << "and still counted";
  EXPECT_EQ(reader->bytes()[0], std::byte{0});
  reader.reset();
  EXPECT_EQ(notices_, 1);
  EXPECT_THAT(connection->TakeReleased(), ::testing::ElementsAre(id));
  EXPECT_EQ(table_.use().bytes, 0u);
}

TEST_F(RegionTest, DeadPeerLosesIdsButReadsFinish) {
  Connection connection = Connect();
  const uint64_t id = Register(connection, kPage);
  std::shared_ptr<const Region> reader = connection->Find(id);
  connection->Close();
  EXPECT_EQ(connection->Find(id), nullptr);
  EXPECT_EQ(table_.use().connections, 0u);
  EXPECT_EQ(table_.use().bytes, kPage);
  connection.reset();
  EXPECT_EQ(reader->bytes()[kPage - 1], std::byte{0});
  reader.reset();
  EXPECT_EQ(notices_, 0) << "nobody is there to be told";
  EXPECT_EQ(table_.use().bytes, 0u);
}

// Simulates full memory by a limit on the process's file sizes.
TEST_F(RegionTest, FailedMappingIsRefused) {
  const Connection connection = Connect();
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = kPage;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Refusal refusal = Refused(connection, 2 * kPage);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(refusal.reason, Reason::kOverloaded);
  EXPECT_THAT(refusal.message, ::testing::HasSubstr("File too large"));
  EXPECT_EQ(table_.use().bytes, 0u);
  Register(connection, 2 * kPage);
}

TEST_F(RegionTest, MissingDescriptorIsRefused) {
  const Connection connection = Connect();
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit none = old;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Refusal refusal = Refused(connection, kPage);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(refusal.reason, Reason::kOverloaded);
  EXPECT_THAT(refusal.message, ::testing::HasSubstr("memfd_create"));
  EXPECT_EQ(table_.use().regions, 0u);
}

}  // namespace
}  // namespace sortition::service::region_test
