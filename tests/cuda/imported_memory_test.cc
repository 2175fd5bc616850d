// Rows in device memory that another process made: read where they are, and no descriptor does any harm.
#include "devices/cuda/imported_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "service/memory/descriptor.h"
#include "service/memory/packet.h"
#include "tests/cuda/device_batch.h"
#include "tests/cuda/foreign_memory.h"

namespace sortition::devices::imported_memory_test {
namespace {

using cuda::Result;
using service::Descriptor;
using testing::FakeCudaDriver;
using testing::ForeignMemory;
using ::testing::HasSubstr;
using testing::OpenDescriptors;
using testing::RowIn;
using testing::Rows;
using testing::RunBatch;
using testing::StartOn;

constexpr uint32_t kMemory = 7;
constexpr uint64_t kUnit = 2 << 20;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::shared_ptr<const ImportedMemory> ImportTo(Device* device, const MemoryHandle& handle) {
  auto imported = device->Import(handle);
  if (!imported.ok()) ADD_FAILURE() << imported.status();
  return imported.ok() ? *std::move(imported) : nullptr;
}

// Every third row in the host's memory, the others at all distances from multiples of 16, of memory that may change or
// not.
std::vector<DeviceRow> Spread(const Rows& rows, const ForeignMemory& memory, const ImportedMemory& imported) {
  std::vector<DeviceRow> batch = rows.Batch();
  uint64_t offset = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (i % 3 == 2) continue;
    const kernels::RandomRow& row = *rows.rows[i];
    offset += i % 4 == 0 ? 0 : i;
    batch[i] = RowIn(imported, memory, offset, row.tensor(), row.request());
    batch[i].may_change = i % 2 == 0;
    offset = (offset + row.tensor().size() + 15) / 16 * 16;
  }
  return batch;
}

TEST(CudaImport, ImportedRowsAreSampled) {
  // Drivers that know no access to read alone may refuse it in any way.
  for (const Result read_access : {Result::kSuccess, Result::kNotSupported, Result::kInvalidValue, Result(999)}) {
    const FakeCudaDriver driver({.read_access = read_access});
    for (const uint64_t most_bytes : {uint64_t{30'000}, uint64_t{512} << 20}) {
      const auto device = StartOn(driver, {.max_batch_bytes = most_bytes, .memory = kMemory});
      const ForeignMemory memory(driver);
      const auto imported = ImportTo(device.get(), memory.handle());
      ASSERT_NE(imported, nullptr);
      EXPECT_EQ(imported->memory(), kMemory);
      EXPECT_EQ(imported->bytes().size(), memory.handle().bytes);
      for (const uint32_t vocabulary : {1u, 300u, 9000u}) {
        const Rows rows(24, vocabulary, vocabulary);
        rows.ExpectRight(RunBatch(device.get(), Spread(rows, memory, *imported)));
      }
    }
  }
}

TEST(CudaImport, RefusedAccessNamesBothWays) {
  FakeCudaDriver driver({.read_access = Result(999)});
  const auto device = StartOn(driver, {.memory = kMemory});
  const ForeignMemory memory(driver);
  driver.Fail("MemSetAccess", Result(500), 2);
  const absl::Status status = device->Import(memory.handle()).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("(500): cuMemSetAccess to write; to read: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(999)"));
}

// Kernels rely on their findings in a row: rows that another process may change are copied first, others are not.
TEST(CudaImport, ChangeableBytesAreCopied) {
  FakeCudaDriver driver;
  const auto device = StartOn(driver, {.memory = kMemory});
  const ForeignMemory memory(driver);
  const auto imported = ImportTo(device.get(), memory.handle());
  const Rows rows(1, 640);
  DeviceRow row = RowIn(*imported, memory, 4096, rows.rows[0]->tensor(), rows.rows[0]->request());
  driver.Fail("MemcpyDtoDAsync", Result(701));
  rows.ExpectRight(RunBatch(device.get(), {row}));
  row.may_change = true;
  const absl::Status status = RunBatch(device.get(), {row}).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("MemcpyDtoDAsync"));
  rows.ExpectRight(RunBatch(device.get(), {row}));
}

// Rows that adjoin, lie at equal distances, have several lengths or come in any order: a step's rows take one copy
// where possible.
TEST(CudaImport, RowsAreCopiedTogether) {
  FakeCudaDriver driver;
  const auto device = StartOn(driver, {.memory = kMemory});
  const ForeignMemory memory(driver);
  const auto imported = ImportTo(device.get(), memory.handle());
  constexpr uint32_t kCount = 6;
  const struct {
    uint32_t vocabulary;
    std::vector<uint64_t> offsets;
    uint64_t copies;  // of lines that adjoin
    uint64_t copies_of_lines;
  } cases[] = {{640, {0, 1280, 2560, 3840, 5120, 6400}, 1, 0},  {640, {5, 1285, 2565, 3845, 5125, 6405}, 1, 0},
               {637, {0, 1280, 2560, 3840, 5120, 6400}, 0, 1},  {637, {0, 1274, 2548, 3822, 5096, 6370}, 0, 1},
               {640, {6400, 5120, 3840, 2560, 1280, 0}, 6, 0},  {640, {0, 0, 0, 0, 0, 0}, 6, 0},
               {640, {0, 1280, 2560, 8000, 9280, 10560}, 2, 0}, {640, {0, 2000, 4000, 9000, 11000, 13000}, 0, 2},
               {640, {0, 1279, 2560, 4096, 5376, 6656}, 2, 1}};
  for (const auto& [vocabulary, offsets, copies, copies_of_lines] : cases) {
    std::vector<std::unique_ptr<kernels::RandomRow>> random;
    for (uint64_t seed = 0; random.size() < kCount; ++seed) {
      auto row = std::make_unique<kernels::RandomRow>(seed, vocabulary);
      const bool is_wanted = row->request().dtype != kernels::DType::kF32;
      if (is_wanted && row->request().live_vocabulary == vocabulary) random.push_back(std::move(row));
    }
    std::vector<DeviceRow> batch;
    for (uint32_t i = 0; i < kCount; ++i) {
      batch.push_back(RowIn(*imported, memory, offsets[i], random[i]->tensor(), random[i]->request()));
      batch[i].may_change = true;
    }
    const uint64_t before = driver.calls("MemcpyDtoDAsync");
    const uint64_t before_of_lines = driver.calls("Memcpy2DAsync");
    const BatchOutput result = RunBatch(device.get(), batch);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(driver.calls("MemcpyDtoDAsync") - before, copies) << offsets[1] << " " << offsets[2];
    EXPECT_EQ(driver.calls("Memcpy2DAsync") - before_of_lines, copies_of_lines) << offsets[1] << " " << offsets[2];
    // Rows overlap; only the last one is whole.
    for (uint32_t i = 0; i < kCount; ++i) {
      const auto& tensor = random[i]->tensor();
      if (std::memcmp(memory.data() + offsets[i], tensor.data(), tensor.size()) != 0) continue;
      EXPECT_EQ(result.outputs[i], law::SampleRowReference(random[i]->request())) << random[i]->description();
    }
  }
}

TEST(CudaImport, RowsNeverPassTheHost) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver, {.memory = kMemory});
  const ForeignMemory memory(driver);
  const auto imported = ImportTo(device.get(), memory.handle());
  const Rows rows(3, 60'000);
  std::vector<DeviceRow> batch;
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const kernels::RandomRow& row = *rows.rows[i];
    batch.push_back(RowIn(*imported, memory, i * 260'003, row.tensor(), row.request()));
    batch.back().may_change = true;
  }
  const uint64_t before = driver.uploaded_bytes();
  rows.ExpectRight(RunBatch(device.get(), batch));
  uint64_t row_bytes = 0;
  for (const auto& row : rows.rows) row_bytes = std::max<uint64_t>(row_bytes, row->tensor().size());
  EXPECT_LT(driver.uploaded_bytes() - before, row_bytes);
}

TEST(CudaImport, IdentityIsDevicesUuid) {
  const FakeCudaDriver driver({.devices = 2});
  std::string uuid;
  for (int i = 0; i < 16; ++i) uuid.push_back(static_cast<char>(0x11 * i));
  const MemoryIdentity expected = {MemoryKind::kCuda, uuid, ""};
  EXPECT_EQ(StartOn(driver, {.memory = kMemory})->description().identity, expected);
  EXPECT_EQ(StartOn(driver, {.memory = kMemory})->description().memory, kMemory);
  EXPECT_NE(cuda::IdentityOf(cuda::FindHardware(driver.api())->at(1)), expected);
  EXPECT_EQ(StartOn(driver)->description().identity, MemoryIdentity());
}

TEST(CudaImport, DeviceWithoutImportRefuses) {
  const FakeCudaDriver driver({.shares_memory = false});
  const auto device = StartOn(driver, {.memory = kMemory});
  EXPECT_EQ(device->description().identity, MemoryIdentity());
  EXPECT_TRUE(
      absl::IsUnimplemented(device->Import({.kind = MemoryKind::kCuda, .descriptor = 0, .bytes = kUnit}).status()));
  const Rows rows(3);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
}

TEST(CudaImport, InvalidDescriptorIsRefused) {
  FakeCudaDriver driver({.devices = 2, .memory_bytes = 64 << 20});
  const auto device = StartOn(driver, {.memory = kMemory, .lost = [](const absl::Status&) { ADD_FAILURE(); }});
  const ForeignMemory memory(driver);
  const ForeignMemory elsewhere(driver, kUnit, 1);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const Descriptor read_end(pipes[0]);
  const Descriptor write_end(pipes[1]);
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  const Descriptor file(memfd_create("rubbish", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kUnit), 0);
  const int before = OpenDescriptors();

  MemoryHandle handle = memory.handle();
  for (const int descriptor :
       {-1, std::numeric_limits<int>::min(), 100'000, read_end.get(), socket.get(), file.get()}) {
    handle.descriptor = descriptor;
    const absl::Status status = device->Import(handle).status();
    EXPECT_EQ(status.code(), kInvalid) << descriptor;
    EXPECT_THAT(std::string(status.message()), HasSubstr("descriptor"));
  }
  EXPECT_THAT(std::string(device->Import(elsewhere.handle()).status().message()),
              HasSubstr("descriptor: not memory of CUDA device 0"));
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, kUnit + 4096, uint64_t{10} << 20, uint64_t{66} << 20,
                               std::numeric_limits<uint64_t>::max() - kUnit + 1}) {
    handle = memory.handle();
    handle.bytes = bytes;
    const absl::Status status = device->Import(handle).status();
    EXPECT_EQ(status.code(), kInvalid) << bytes;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bytes"));
  }
  for (const MemoryKind kind : {MemoryKind::kNone, MemoryKind::kVulkan}) {
    handle = memory.handle();
    handle.kind = kind;
    EXPECT_TRUE(absl::IsUnimplemented(device->Import(handle).status()));
  }
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_NE(ImportTo(device.get(), memory.handle()), nullptr);
  const Rows rows(3);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
}

// Errors while importing are the import's: even one that would lose the device if a batch met it.
TEST(CudaImport, EachFailureIsTypedAndLeaksNothing) {
  FakeCudaDriver driver;
  const auto device = StartOn(driver, {.memory = kMemory, .lost = [](const absl::Status&) { ADD_FAILURE(); }});
  const ForeignMemory memory(driver);
  const int before = OpenDescriptors();
  constexpr auto kInternal = absl::StatusCode::kInternal;
  for (const auto& [function, unknown, invalid] :
       {std::tuple{"MemGetAllocationGranularity", kInternal, kInternal},
        {"MemImportFromShareableHandle", kInvalid, kInvalid},
        {"MemGetAllocationPropertiesFromHandle", kInvalid, kInvalid},
        {"MemAddressReserve", kInternal, kInternal},
        {"MemMap", kInternal, kInvalid},
        {"MemSetAccess", absl::StatusCode::kOk, absl::StatusCode::kOk}}) {  // asked again for memory to write
    for (const auto& [error, code] : {std::pair{Result(999), unknown},
                                      {Result::kInvalidValue, invalid},
                                      {Result::kOutOfMemory, absl::StatusCode::kResourceExhausted},
                                      {Result::kLaunchFailed, absl::StatusCode::kUnavailable}}) {
      driver.Fail(function, error);
      EXPECT_EQ(device->Import(memory.handle()).status().code(), code) << function << " " << int(error);
      EXPECT_EQ(OpenDescriptors(), before) << function;
    }
  }
  const auto imported = ImportTo(device.get(), memory.handle());
  const Rows rows(6);
  rows.ExpectRight(RunBatch(device.get(), Spread(rows, memory, *imported)));
}

TEST(CudaImport, MemoryOutlivesMakerAndDevice) {
  FakeCudaDriver driver;
  auto device = StartOn(driver, {.memory = kMemory});
  auto memory = std::make_unique<ForeignMemory>(driver);
  auto imported = ImportTo(device.get(), memory->handle());
  const Rows rows(6);
  const std::vector<DeviceRow> batch = Spread(rows, *memory, *imported);
  memory.reset();
  rows.ExpectRight(RunBatch(device.get(), batch));
  device.reset();
  const std::vector<std::byte>& tensor = rows.rows[0]->tensor();
  std::vector<std::byte> read(tensor.size() - 5);
  ASSERT_TRUE(imported->Read(5, read).ok());
  EXPECT_EQ(std::memcmp(read.data(), tensor.data() + 5, read.size()), 0);
  EXPECT_TRUE(imported->Read(imported->bytes().size(), {}).ok());
  driver.Fail("MemcpyDtoH", Result::kIllegalAddress);
  EXPECT_TRUE(absl::IsUnavailable(imported->Read(0, read)));
}

TEST(CudaImport, ThreadsImportReadAndSample) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver, {.memory = kMemory});
  const ForeignMemory memory(driver);
  const auto imported = ImportTo(device.get(), memory.handle());
  const Rows rows(6);
  const std::vector<DeviceRow> batch = Spread(rows, memory, *imported);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      std::vector<std::byte> read(4096);
      for (int j = 0; j < 8; ++j) {
        const auto own = ImportTo(device.get(), memory.handle());
        EXPECT_TRUE(own->Read(0, read).ok());
        EXPECT_EQ(std::memcmp(read.data(), memory.data(), read.size()), 0);
      }
    });
  }
  for (int i = 0; i < 4; ++i) rows.ExpectRight(RunBatch(device.get(), batch));
  for (std::thread& thread : threads) thread.join();
}

// The maker is dead before the rows are read.
TEST(CudaImport, MemoryCrossesProcesses) {
  const FakeCudaDriver driver;
  const Rows rows(4);
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const Descriptor own(sockets[0]);
  Descriptor makers(sockets[1]);
  const pid_t maker = fork();
  ASSERT_GE(maker, 0);
  if (maker == 0) {
    const ForeignMemory memory(driver);
    uint64_t offset = 0;
    for (const auto& row : rows.rows) {
      std::memcpy(memory.data() + offset, row->tensor().data(), row->tensor().size());
      offset += 4096;
    }
    _exit(service::SendPacket(makers.get(), "memory", memory.handle().descriptor, 0) ? 0 : 1);
  }
  Descriptor descriptor;
  std::array<char, 16> packet;
  ASSERT_GT(service::ReceivePacket(own.get(), packet, &descriptor, 0), 0);
  int ended = 0;
  ASSERT_EQ(waitpid(maker, &ended, 0), maker);
  ASSERT_EQ(ended, 0);

  const auto device = StartOn(driver, {.memory = kMemory});
  const auto imported =
      ImportTo(device.get(), {.kind = MemoryKind::kCuda, .descriptor = descriptor.get(), .bytes = 8 << 20});
  ASSERT_NE(imported, nullptr);
  std::vector<DeviceRow> batch = rows.Batch();
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].segments = {{imported->bytes().data() + 4096 * i, rows.rows[i]->tensor().size()}};
    batch[i].memory = kMemory;
    batch[i].imported = imported.get();
  }
  rows.ExpectRight(RunBatch(device.get(), batch));
}

}  // namespace
}  // namespace sortition::devices::imported_memory_test
