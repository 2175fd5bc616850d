// Rows in a device's memory, from one process to another: the descriptor crosses a real socket, and the server's device
// finds the rows behind it. CUDA's driver is the tests' own, in both processes.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/cuda/cuda_ready.h"
#include "client/cpp/cuda/cuda_results.h"
#include "client/cpp/cuda/cuda_rows.h"
#include "client/cpp/cuda/cuda_statements.h"
#include "devices/cuda/api.h"
#include "devices/cuda/hardware.h"
#include "sortition/in_process.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/e2e/servers.h"

namespace sortition::testing::device_memory_test {
namespace {

constexpr uint32_t kVocabulary = 3000;
constexpr uint64_t kRowBytes = kVocabulary * 2;
constexpr uint64_t kSeed = 5;

// Processes that are started meanwhile find the tests' driver.
class WithFakeCuda {
 public:
  WithFakeCuda() : was_set_(std::getenv("LD_LIBRARY_PATH") != nullptr) {
    if (was_set_) before_ = std::getenv("LD_LIBRARY_PATH");
    setenv("LD_LIBRARY_PATH", absl::StrCat(FAKE_CUDA, ":", before_).c_str(), 1);
  }
  ~WithFakeCuda() { was_set_ ? setenv("LD_LIBRARY_PATH", before_.c_str(), 1) : unsetenv("LD_LIBRARY_PATH"); }

 private:
  const bool was_set_;
  std::string before_;
};

std::vector<std::string> FlagsOf(const std::string& socket, const std::string& devices) {
  return {absl::StrCat("--memory_listen=unix:", socket), absl::StrCat("--devices=", devices),
          "--connection_device_bytes=67108864"};
}

std::unique_ptr<process::ServerProcess> StartOnFakeCuda(const std::string& socket, const std::string& devices) {
  const WithFakeCuda driver;
  return StartServer(FlagsOf(socket, devices));
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

// Functions of the fake driver that hold and release the work on its streams in this process.
struct FakeStream {
  using Function = void (*)();
  static Function Find(const char* name) {
    return reinterpret_cast<Function>(dlsym(dlopen(FAKE_CUDA "/libcuda.so.1", RTLD_NOW), name));
  }
  const Function hold = Find("FakeCudaHold");  // it is not done until it is released
  const Function await_waiting = Find("FakeCudaAwaitWaiting");
  const Function release = Find("FakeCudaRelease");
};

class DeviceMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(FAKE_CUDA).empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  }

  // Twenty steps of three rows. The fake device's memory is the host's, so that the test can write there.
  void StepAll(client::Client* client, const client::CudaRows& rows,
               const v1::SamplingParameters& parameters = Usual()) {
    std::vector<std::unique_ptr<client::Sequence>> sequences;
    std::vector<ReferenceSequence> references;
    for (int i = 0; i < 3; ++i) {
      client::SequenceOptions options;
      options.request_id = absl::StrCat("r", i);
      options.vocabulary_size = kVocabulary;
      options.seed = kSeed;
      options.parameters = parameters;
      auto opened = client->Open(options);
      ASSERT_TRUE(opened.ok()) << opened.status();
      sequences.push_back(*std::move(opened));
      references.emplace_back(options.parameters, kSeed, 0, kVocabulary, kVocabulary, std::vector<uint32_t>());
    }
    auto* const data = static_cast<std::byte*>(rows.data());
    for (uint64_t step = 0; step < 20; ++step) {
      client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
      for (size_t i = 0; i < 3; ++i) {
        const std::vector<std::byte> row = MakeRow(v1::DTYPE_BF16, kVocabulary, step * 3 + i);
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

  static v1::SamplingParameters Usual() {
    v1::SamplingParameters parameters;
    parameters.set_top_p(0.9f);
    parameters.set_frequency_penalty(0.5f);
    return parameters;
  }
  // Shares rows that the device states, and counts those that are read to the host.
  std::shared_ptr<const client::Client::DeviceMemory> ShareStated(client::Client* client,
                                                                  const client::CudaRows& rows) {
    client::DeviceRows device = client::WithStatements(rows);
    device.read = [this, read = device.read](uint64_t offset, std::span<std::byte> to) {
      rows_read_ += static_cast<int>(to.size() / kRowBytes);
      return read(offset, to);
    };
    auto memory = client->ShareDevice(std::move(device));
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }

  const std::string socket_ = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), ".sock");
  std::atomic<int> rows_read_ = 0;
};

TEST_F(DeviceMemoryTest, RowsOnServersGpuAreNamedNotSent) {
  const auto server = StartOnFakeCuda(socket_, "cuda");
  const auto client = Connect(QuickOptions({server->address()}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->sharing(), absl::OkStatus());
  StepAll(client.get(), *rows);
}

// A server on another machine: each row's first tokens leave the device, but no row.
TEST_F(DeviceMemoryTest, RowsForServersElsewhereAreStatedThere) {
  const auto server = StartServer();
  client::ClientOptions options = QuickOptions({server->address()});
  options.transport.shared_memory_bytes = 0;
  options.rows = {.form = client::RowFormOptions::Form::kAuto, .count = 64};
  const auto client = Connect(options);
  const auto rows = MakeRows();
  const auto memory = ShareStated(client.get(), *rows);
  EXPECT_FALSE(memory->sharing().ok());
  v1::SamplingParameters parameters = Usual();
  parameters.set_top_k(20);
  StepAll(client.get(), *rows, parameters);
  EXPECT_EQ(rows_read_, 0);
  // Sums are stated where an option needs them.
  parameters.mutable_raw_logprobs()->set_top(3);
  parameters.mutable_tempered_logprobs();
  parameters.set_frequency_penalty(0);
  StepAll(client.get(), *rows, parameters);
  EXPECT_EQ(rows_read_, 0);
  // A token that the server requests is read with its row. Then the row is sent in compact form, with the token.
  v1::LogitBias* const bias = parameters.add_logit_bias();
  bias->set_token(kVocabulary - 1);
  bias->set_bias(3.0f);
  StepAll(client.get(), *rows, parameters);
  EXPECT_GT(rows_read_, 0);
  EXPECT_LE(rows_read_, 60);
}

// Rows with unequal distances, rows that fail and rows that the device cannot state are answered like others.
TEST_F(DeviceMemoryTest, RowsThatDeviceDoesNotStateGoWhole) {
  const auto server = StartServer();
  client::ClientOptions options = QuickOptions({server->address()});
  options.transport.shared_memory_bytes = 0;
  options.rows = {.form = client::RowFormOptions::Form::kCompact, .count = 64};
  const auto client = Connect(options);
  const auto rows = MakeRows();
  const auto memory = ShareStated(client.get(), *rows);
  auto* const data = static_cast<std::byte*>(rows->data());
  v1::SamplingParameters parameters = Usual();
  parameters.set_top_k(20);
  // The third one begins at no multiple of 16 bytes. The fourth one has a logit that fails it.
  const std::vector<uint64_t> offsets = {0, 2 * kRowBytes, 5 * kRowBytes + 2, 8 * kRowBytes, 7 * kRowBytes};
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
  for (size_t i = 0; i < offsets.size(); ++i) {
    client::SequenceOptions sequence;
    sequence.request_id = absl::StrCat("r", i);
    sequence.vocabulary_size = kVocabulary;
    sequence.seed = kSeed;
    sequence.parameters = parameters;
    sequences.push_back(*client->Open(sequence));
    std::vector<std::byte> row = MakeRow(v1::DTYPE_BF16, kVocabulary, i);
    if (i == 3) std::memset(row.data() + 100, 0xff, 2);
    std::memcpy(data + offsets[i], row.data(), row.size());
    batch.rows.push_back({sequences.back().get(), data + offsets[i]});
  }
  const auto outcomes = client->Step(batch);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (i == 3) {
      ASSERT_TRUE(std::holds_alternative<client::RowError>((*outcomes)[i]));
      EXPECT_EQ(std::get<client::RowError>((*outcomes)[i]).reason, v1::LOGIT_NAN);
      continue;
    }
    const auto* const draw = std::get_if<v1::DrawResult>(&(*outcomes)[i]);
    ASSERT_NE(draw, nullptr) << i << client::Describe(std::get<client::RowError>((*outcomes)[i]));
    ReferenceSequence reference(parameters, kSeed, 0, kVocabulary, kVocabulary, std::vector<uint32_t>());
    EXPECT_EQ(draw->token(), reference.Step(v1::DTYPE_BF16, data + offsets[i]).token()) << i;
  }
  EXPECT_EQ(rows_read_, 2);
}

// As in a pod: a worker and a server share the device and a folder, and no other namespace.
TEST_F(DeviceMemoryTest, RowsAreNamedAcrossContainers) {
  setenv("CONTAINED", "/bin/true", 1);
  if (std::system(CONTAINER) != 0) GTEST_SKIP() << "needs the right to namespaces, unshare and ip";
  setenv("CONTAINED", SORTITIOND, 1);
  const std::string target = absl::StrCat("unix:", ::testing::TempDir(), "sortition_", getpid(), ".contained");
  std::vector<std::string> flags = FlagsOf(socket_, "cuda");
  flags.push_back(absl::StrCat("--listen=127.0.0.1:0,", target));
  const auto server = [&] {
    const WithFakeCuda driver;
    return process::ServerProcess::Start(CONTAINER, flags, ::testing::TempDir() + "sortitiond.log");
  }();
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = Connect(QuickOptions({target}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->sharing(), absl::OkStatus());
  StepAll(client.get(), *rows);
}

// A worker that queues all its work without waiting. A step leaves before its logits are written, and waits at the
// server for the word that the GPU raises. Its token is in the GPU's memory when the next work begins.
TEST_F(DeviceMemoryTest, NoThreadWaitsForGpuOrAnswers) {
  const auto server = StartOnFakeCuda(socket_, "cuda");
  const auto client = Connect(QuickOptions({server->address()}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto page = client->AllocateRows(client::CudaReady::kBytes);
  ASSERT_TRUE(page.ok() && page->shared);
  const auto api = devices::cuda::Api::Load(FAKE_CUDA "/libcuda.so.1");
  const devices::cuda::Hardware hardware = devices::cuda::FindHardware(*api)->front();
  const auto ready = client::CudaReady::CreateOn(*api, hardware, page->data);
  ASSERT_TRUE(ready.ok()) << ready.status();
  const auto answers = client::CudaResults::CreateOn(*api, hardware, 2);
  ASSERT_TRUE(answers.ok()) << answers.status();
  const FakeStream stream;

  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = kVocabulary;
  options.seed = kSeed;
  options.parameters.mutable_raw_logprobs();
  const auto sequence = client->Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  ReferenceSequence reference(options.parameters, kSeed, 0, kVocabulary, kVocabulary, std::vector<uint32_t>());
  for (uint64_t step = 0; step < 20; ++step) {
    stream.hold();
    const auto word = (*ready)->Raise(nullptr);
    ASSERT_TRUE(word.ok()) << word.status();
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {{sequence->get(), rows->data()}}};
    batch.ready = *word;
    absl::Notification over;
    std::vector<client::RowResult> outcomes;
    const auto done = [&](std::vector<client::RowResult> result) {
      outcomes = std::move(result);
      over.Notify();
    };
    ASSERT_EQ((*answers)->StepAsync(client.get(), batch, {}, nullptr, done), absl::OkStatus());
    stream.await_waiting();
    EXPECT_FALSE(over.HasBeenNotified());
    const std::vector<std::byte> row = MakeRow(v1::DTYPE_BF16, kVocabulary, step);
    std::memcpy(rows->data(), row.data(), row.size());
    stream.release();
    // Work queued behind the step. The fake device's memory is the host's.
    ASSERT_EQ(api->StreamSynchronize(nullptr), devices::cuda::Result::kSuccess);
    EXPECT_EQ((*answers)->tokens()[0], static_cast<int32_t>(reference.Step(v1::DTYPE_BF16, row.data()).token()));
    EXPECT_EQ((*answers)->tokens()[1], -1);
    over.WaitForNotification();
    EXPECT_EQ((*answers)->logprobs()[0], std::get<v1::DrawResult>(outcomes[0]).raw().logprob());
  }
}

TEST_F(DeviceMemoryTest, FailedStepBlocksNoLaterWork) {
  const auto client = *client::Client::Connect({.in_process = client::InProcessEngine()});
  const auto api = devices::cuda::Api::Load(FAKE_CUDA "/libcuda.so.1");
  const auto answers = client::CudaResults::CreateOn(*api, devices::cuda::FindHardware(*api)->front(), 1);
  ASSERT_TRUE(answers.ok()) << answers.status();
  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = 8;
  const auto sequence = client->Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const std::vector<float> row(8, std::numeric_limits<float>::quiet_NaN());
  client::Batch batch{v1::DTYPE_F32, 8, {{sequence->get(), row.data()}}};
  absl::Notification over;
  const auto step = [&](client::Client::StepDone done) {
    return (*answers)->StepAsync(client.get(), batch, {}, nullptr, std::move(done));
  };
  ASSERT_EQ(step([&](std::vector<client::RowResult>) { over.Notify(); }), absl::OkStatus());
  ASSERT_EQ(api->StreamSynchronize(nullptr), devices::cuda::Result::kSuccess);
  EXPECT_EQ((*answers)->tokens()[0], -1);
  over.WaitForNotification();
  // A step that cannot be submitted at all.
  batch.vocabulary_size = 0;
  EXPECT_EQ(step([](std::vector<client::RowResult>) { FAIL(); }).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(api->StreamSynchronize(nullptr), devices::cuda::Result::kSuccess);
  batch.rows.resize(2, batch.rows[0]);
  EXPECT_EQ(step([](std::vector<client::RowResult>) { FAIL(); }).code(), absl::StatusCode::kInvalidArgument);
}

// The server is killed between two steps, and the next one has no such device: the rows are read to the host.
TEST_F(DeviceMemoryTest, DeadServerLeavesRowsToWorker) {
  auto server = StartOnFakeCuda(socket_, "cuda");
  const auto other = StartServer({"--devices=cpu"});
  const auto client = Connect(QuickOptions({server->address(), other->address()}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok() && (*memory)->sharing().ok());
  server.reset();
  StepAll(client.get(), *rows);
}

TEST_F(DeviceMemoryTest, ServerWithoutDeviceIsATypedError) {
  const auto server = StartOnFakeCuda(socket_, "cpu");
  const auto client = Connect(QuickOptions({server->address()}));
  const auto rows = MakeRows();
  const auto memory = client->ShareDevice(rows->rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->sharing(), absl::FailedPreconditionError("the server takes no memory of this device"));
  StepAll(client.get(), *rows);
}

}  // namespace
}  // namespace sortition::testing::device_memory_test
