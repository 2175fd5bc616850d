// Rows in a device's memory, from one process to another: the descriptor crosses a real socket, and the server's device
// finds the rows behind it. CUDA's driver is the tests' own, in both processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/cpp/cuda_rows.h"
#include "devices/cuda/api.h"
#include "devices/cuda/hardware.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/e2e/servers.h"

namespace sortition::testing {
namespace {

constexpr uint32_t kDeviceVocabulary = 3000;
constexpr uint64_t kRowBytes = kDeviceVocabulary * 2;
constexpr uint64_t kSeed = 5;

std::unique_ptr<demo::ServerProcess> StartOnFakeCuda(const std::string& socket, const std::string& devices) {
  const char* const before = std::getenv("LD_LIBRARY_PATH");
  const std::string restored = before == nullptr ? "" : before;
  setenv("LD_LIBRARY_PATH", absl::StrCat(FAKE_CUDA, ":", restored).c_str(), 1);
  auto server = StartServer({absl::StrCat("--memory_listen=unix:", socket), absl::StrCat("--devices=", devices),
                             "--connection_device_bytes=67108864"});
  before == nullptr ? unsetenv("LD_LIBRARY_PATH") : setenv("LD_LIBRARY_PATH", restored.c_str(), 1);
  return server;
}

std::unique_ptr<client::CudaRows> MakeRows() {
  const auto api = devices::cuda::Api::Load(FAKE_CUDA "/libcuda.so.1");
  EXPECT_TRUE(api.ok()) << api.status();
  const auto hardware = devices::cuda::FindHardware(*api);
  EXPECT_TRUE(hardware.ok()) << hardware.status();
  auto rows = client::CudaRows::CreateOn(*api, hardware->front(), 1 << 20);
  EXPECT_TRUE(rows.ok()) << rows.status();
  return *std::move(rows);
}

class DeviceMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(FAKE_CUDA).empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  }

  // Twenty steps of three rows. The fake device's memory is the host's, so that the test can write there.
  void StepAll(client::Client* client, const client::CudaRows& rows) {
    std::vector<std::unique_ptr<client::Sequence>> sequences;
    std::vector<ReferenceSequence> references;
    for (int i = 0; i < 3; ++i) {
      client::SequenceOptions options;
      options.request_id = absl::StrCat("r", i);
      options.vocabulary_size = kDeviceVocabulary;
      options.seed = kSeed;
      options.parameters.set_top_p(0.9f);
      options.parameters.set_frequency_penalty(0.5f);
      auto opened = client->Open(options);
      ASSERT_TRUE(opened.ok()) << opened.status();
      sequences.push_back(*std::move(opened));
      references.emplace_back(options.parameters, kSeed, 0, kDeviceVocabulary, kDeviceVocabulary,
                              std::vector<uint32_t>());
    }
    auto* const data = static_cast<std::byte*>(rows.data());
    for (uint64_t step = 0; step < 20; ++step) {
      client::Batch batch{v1::DTYPE_BF16, kDeviceVocabulary, {}};
      for (size_t i = 0; i < 3; ++i) {
        const std::vector<std::byte> row = MakeRow(v1::DTYPE_BF16, kDeviceVocabulary, step * 3 + i);
        std::memcpy(data + i * kRowBytes, row.data(), row.size());
        batch.rows.push_back({sequences[i].get(), data + i * kRowBytes});
      }
      const auto outcomes = client->Step(batch);
      ASSERT_TRUE(outcomes.ok()) << outcomes.status();
      for (size_t i = 0; i < 3; ++i) {
        const auto* const draw = std::get_if<v1::DrawResult>(&(*outcomes)[i]);
        ASSERT_NE(draw, nullptr) << client::Describe(std::get<client::RowError>((*outcomes)[i]));
        EXPECT_EQ(draw->token(), references[i].Step(v1::DTYPE_BF16, data + i * kRowBytes).token());
      }
    }
  }

  const std::string socket_ = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), ".sock");
};

TEST_F(DeviceMemoryTest, RowsOnTheServersGpuAreOnlyNamed) {
  const auto server = StartOnFakeCuda(socket_, "cuda");
  const auto client = Connect(QuickOptions({server->address()}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->sharing(), absl::OkStatus());
  StepAll(client.get(), *rows);
}

// The server is killed between two steps, and the next one has no such device: the rows are read to the host.
TEST_F(DeviceMemoryTest, AServerThatDiesLeavesTheWorkerItsRows) {
  auto server = StartOnFakeCuda(socket_, "cuda");
  const auto other = StartServer({"--devices=cpu"});
  const auto client = Connect(QuickOptions({server->address(), other->address()}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok() && (*memory)->sharing().ok());
  server.reset();
  StepAll(client.get(), *rows);
}

TEST_F(DeviceMemoryTest, AServerWithoutTheDeviceSaysSo) {
  const auto server = StartOnFakeCuda(socket_, "cpu");
  const auto client = Connect(QuickOptions({server->address()}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->sharing(), absl::FailedPreconditionError("the server takes no memory of this device"));
  StepAll(client.get(), *rows);
}

}  // namespace
}  // namespace sortition::testing
