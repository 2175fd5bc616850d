// Rows in a device's memory, from a worker's client to the device: the descriptor really travels, and nothing touches
// the rows' bytes on the way. The device is a fake; real ones are met in tests/e2e.
#include "service/wire/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/transport/device_rows.h"
#include "client/cpp/transport/memory_link.h"
#include "client/cpp/transport/unix_socket.h"
#include "service/memory/packet.h"
#include "sortition/client.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/server/memory_socket.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_card_memory.h"
#include "tests/support/fake_device.h"

namespace sortition::server::device_memory_test {
namespace {

using client::MemoryLink;
using client::RowError;
using service::Descriptor;
using testing::FakeCardMemory;
using testing::FakeDevice;
using testing::MakeRow;
using testing::ReferenceSequence;

constexpr uint32_t kVocabulary = 100;
constexpr uint64_t kRowBytes = kVocabulary * 2;
constexpr uint64_t kBytes = 1 << 16;
constexpr uint64_t kSeed = 5;

// A worker's rows on the fake card. Their addresses cannot be read or written, like a real card's.
class CardRows {
 public:
  CardRows() : CardRows(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  // Reserves unreadable pages, which belong to this object.
  explicit CardRows(void* address) : address_(address) {}
  ~CardRows() { munmap(address_, kBytes); }

  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(address_) + offset; }
  void Write(uint64_t offset, const std::vector<std::byte>& row) {
    std::memcpy(memory_.data() + offset, row.data(), row.size());
  }
  client::DeviceRows rows() {
    return {.identity = FakeCardMemory::Identity(),
            .handle = memory_.handle(),
            .data = at(0),
            .bytes = kBytes,
            .read = [this](uint64_t offset, std::span<std::byte> to) {
              ++reads;
              if (read_status.ok()) std::memcpy(to.data(), memory_.data() + offset, to.size());
              return read_status;
            }};
  }
  devices::MemoryHandle handle() const { return memory_.handle(); }

  int reads = 0;  // for the host
  absl::Status read_status;

 private:
  FakeCardMemory memory_{kBytes};
  void* const address_;
};

class DeviceMemoryTest : public ::testing::Test {
 protected:
  explicit DeviceMemoryTest(uint64_t connection_device_bytes = 4 * kBytes)
      : server_(ConfigOf(address_, connection_device_bytes), std::make_unique<FakeDevice>(Card())) {}

  static Config ConfigOf(const std::string& address, uint64_t connection_device_bytes) {
    Config config = TestConfig();
    config.memory_listen = address;
    config.limits.connection_device_bytes = connection_device_bytes;
    return config;
  }
  FakeDevice::Options Card() {
    FakeDevice::Options options = {.name = "cpu0", .memory = 1, .identity = FakeCardMemory::Identity()};
    options.synchronous = true;
    options.sample = [this](const devices::DeviceRow& row) {
      (row.imported == nullptr ? from_host_ : on_card_).fetch_add(1);
      return testing::SampleByReference(row);
    };
    return options;
  }
  std::unique_ptr<client::Client> Connect(client::TransportKind kind = client::TransportKind::kGrpc,
                                          const std::vector<std::string>& next = {}, bool row_memory = true) {
    client::ClientOptions options;
    if (!row_memory) options.transport.shared_memory_bytes = 0;
    options.transport.kind = kind;
    options.targets = {kind == client::TransportKind::kRing ? address_ : server_.target()};
    options.targets.insert(options.targets.end(), next.begin(), next.end());
    auto client = client::Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  std::unique_ptr<MemoryLink> ConnectMemory() {
    auto link = MemoryLink::Connect(address_);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  const std::string address_ = absl::StrCat("unix:", ::testing::TempDir(), "sortition_", getpid(), "_",
                                            ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::atomic<int> on_card_ = 0;  // rows
  std::atomic<int> from_host_ = 0;
  TestServer server_;
};

class DeviceMemoryOff : public DeviceMemoryTest {
 protected:
  DeviceMemoryOff() : DeviceMemoryTest(0) {}
};

// Sequences of a client, each with its reference.
class Sequences {
 public:
  Sequences(client::Client* client, int count) {
    for (int i = 0; i < count; ++i) {
      client::SequenceOptions options;
      options.request_id = absl::StrCat("r", i);
      options.vocabulary_size = kVocabulary;
      options.seed = kSeed + uint64_t(i);
      auto opened = client->Open(options);
      EXPECT_TRUE(opened.ok()) << opened.status();
      sequences_.push_back(*std::move(opened));
      references_.emplace_back(options.parameters, *options.seed, 0, kVocabulary, kVocabulary, std::vector<uint32_t>());
    }
  }
  client::Sequence* operator[](size_t i) { return sequences_[i].get(); }
  void Expect(size_t i, const std::vector<std::byte>& row, const client::RowResult& outcome) {
    const auto* const draw = std::get_if<v1::DrawResult>(&outcome);
    ASSERT_NE(draw, nullptr) << client::Describe(std::get<RowError>(outcome));
    EXPECT_EQ(draw->token(), references_[i].Step(v1::DTYPE_BF16, row.data()).token());
  }

 private:
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
  std::vector<ReferenceSequence> references_;
};

std::vector<std::byte> Bf16Row(uint64_t key) { return MakeRow(v1::DTYPE_BF16, kVocabulary, key); }

// Every second row is elsewhere, so that messages are cut where rows do not adjoin.
void StepAll(client::Client* client, Sequences* sequences, CardRows* card, std::vector<uint64_t> offsets) {
  for (uint64_t step = 0; step < 5; ++step) {
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    std::vector<std::vector<std::byte>> rows;
    for (size_t i = 0; i < offsets.size(); ++i) {
      rows.push_back(Bf16Row(step * 100 + i));
      card->Write(offsets[i], rows.back());
      batch.rows.push_back({(*sequences)[i], card->at(offsets[i])});
    }
    const auto outcomes = client->Step(batch);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    for (size_t i = 0; i < offsets.size(); ++i) sequences->Expect(i, rows[i], (*outcomes)[i]);
  }
}

TEST_F(DeviceMemoryTest, RowsAreReadByDeviceAlone) {
  for (const client::TransportKind kind : {client::TransportKind::kGrpc, client::TransportKind::kRing}) {
    const auto client = Connect(kind);
    CardRows card;
    const auto memory = client->ShareDevice(card.rows());
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ((*memory)->sharing(), absl::OkStatus());
    Sequences sequences(client.get(), 4);
    StepAll(client.get(), &sequences, &card, {0, kRowBytes, 2 * kRowBytes, 3 * kRowBytes});
    StepAll(client.get(), &sequences, &card, {kBytes - kRowBytes, 512, 0, kRowBytes});
    EXPECT_EQ(on_card_.exchange(0), 40);
    EXPECT_EQ(from_host_, 0);
    EXPECT_EQ(card.reads, 0);
  }
}

TEST_F(DeviceMemoryTest, RowsOfBothMemoriesShareABatch) {
  const auto client = Connect();
  CardRows card;
  const auto memory = client->ShareDevice(card.rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  Sequences sequences(client.get(), 5);
  std::vector<std::vector<std::byte>> rows;
  for (uint64_t i = 0; i < 5; ++i) rows.push_back(Bf16Row(i));
  client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
  for (size_t i = 0; i < 5; ++i) {
    card.Write(i * kRowBytes, rows[i]);
    batch.rows.push_back({sequences[i], i % 2 == 0 ? card.at(i * kRowBytes) : rows[i].data()});
  }
  const auto outcomes = client->Step(batch);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (size_t i = 0; i < 5; ++i) sequences.Expect(i, rows[i], (*outcomes)[i]);
  EXPECT_EQ(on_card_, 3);
  EXPECT_EQ(from_host_, 2);
}

// Drivers put one allocation right behind another; a message names bytes of one region.
TEST_F(DeviceMemoryTest, AdjoiningAllocationsAreNamedApart) {
  void* const both = mmap(nullptr, 2 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CardRows first(both);
  CardRows second(static_cast<std::byte*>(both) + kBytes);
  const std::vector<std::byte> rows[] = {Bf16Row(1), Bf16Row(2)};
  first.Write(kBytes - kRowBytes, rows[0]);
  second.Write(0, rows[1]);
  for (const client::TransportKind kind : {client::TransportKind::kGrpc, client::TransportKind::kRing}) {
    const auto client = Connect(kind);
    const auto memories = {client->ShareDevice(first.rows()), client->ShareDevice(second.rows())};
    for (const auto& memory : memories) ASSERT_TRUE(memory.ok() && (*memory)->sharing().ok()) << memory.status();
    Sequences sequences(client.get(), 2);
    const auto outcomes = client->Step(
        {v1::DTYPE_BF16, kVocabulary, {{sequences[0], first.at(kBytes - kRowBytes)}, {sequences[1], second.at(0)}}});
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    for (size_t i = 0; i < 2; ++i) sequences.Expect(i, rows[i], (*outcomes)[i]);
  }
  EXPECT_EQ(on_card_, 4);
  EXPECT_EQ(first.reads + second.reads, 0);
}

// A stream that shares nothing, or no longer: the rows are read for it, and the tokens are the same.
TEST_F(DeviceMemoryTest, UnsharableRowsAreReadToHost) {
  const auto client = Connect(client::TransportKind::kGrpc, {}, /*row_memory=*/false);
  CardRows card;
  auto memory = client->ShareDevice(card.rows());
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->sharing(), absl::FailedPreconditionError("the stream shares no memory"));
  EXPECT_EQ(client->ShareDevice(card.rows()).status().code(), absl::StatusCode::kAlreadyExists);
  Sequences sequences(client.get(), 2);
  StepAll(client.get(), &sequences, &card, {0, kRowBytes});
  EXPECT_EQ(card.reads, 10);
  EXPECT_EQ(on_card_, 0);

  card.read_status = absl::UnavailableError("the card is gone");
  const std::vector<std::byte> row = Bf16Row(77);
  const auto outcomes =
      client->Step({v1::DTYPE_BF16, kVocabulary, {{sequences[0], card.at(0)}, {sequences[1], row.data()}}});
  ASSERT_TRUE(outcomes.ok());
  const RowError& error = std::get<RowError>(outcomes->front());
  EXPECT_EQ(error.field, "rows.logits");
  EXPECT_EQ(error.message, "the card is gone");
  sequences.Expect(1, row, outcomes->back());

  const auto behind = client->Step({v1::DTYPE_BF16, kVocabulary, {{sequences[0], card.at(kBytes - 2)}}});
  ASSERT_TRUE(behind.ok());
  EXPECT_EQ(std::get<RowError>(behind->front()).code, absl::StatusCode::kOutOfRange);

  memory->reset();
  EXPECT_TRUE(client->ShareDevice(card.rows()).ok());
}

// The server whose card has a client's rows drains; the next stream goes to another server with that card.
class NextServerTest : public DeviceMemoryTest {
 protected:
  void Start(uint64_t next_bytes) {
    next_.emplace(ConfigOf(address_ + "_next", next_bytes), std::make_unique<FakeDevice>(Card()));
    client_ = Connect(client::TransportKind::kGrpc, {next_->target()});
    auto memory = client_->ShareDevice(card_.rows());
    ASSERT_TRUE(memory.ok() && (*memory)->sharing().ok());
    memory_ = *std::move(memory);
    sequences_.emplace(client_.get(), 2);
    Step();
    EXPECT_EQ(card_.reads, 0);
    server_.server().Drain();
  }
  void Step() { StepAll(client_.get(), &*sequences_, &card_, {0, kRowBytes}); }

  std::optional<TestServer> next_;
  std::unique_ptr<client::Client> client_;
  CardRows card_;
  std::shared_ptr<const client::Client::DeviceMemory> memory_;
  std::optional<Sequences> sequences_;
};

TEST_F(NextServerTest, GetsTheMemory) {
  ASSERT_NO_FATAL_FAILURE(Start(4 * kBytes));
  EXPECT_TRUE(Becomes([&] { return next_->engine().regions().use().connections == 1; }));
  EXPECT_TRUE(Becomes([&] { return next_->engine().regions().use().regions == 2; })) << "room for copies, and the card";
  Step();
  EXPECT_EQ(on_card_, 20);
  EXPECT_EQ(card_.reads, 0);
  memory_.reset();
  EXPECT_TRUE(Becomes([&] { return next_->engine().regions().use().regions == 1; }));
}

TEST_F(NextServerTest, RefusalIsTyped) {
  ASSERT_NO_FATAL_FAILURE(Start(kBytes - 1));
  std::optional<RowError> refusal;
  ASSERT_TRUE(Becomes([&] { return (refusal = client::ErrorOf(memory_->sharing())).has_value(); }));
  EXPECT_EQ(refusal->reason, v1::OUT_OF_RANGE);
  EXPECT_EQ(refusal->limit, absl::StrCat("connection_device_bytes ", kBytes - 1));
  Step();
  EXPECT_EQ(card_.reads, 10);
}

TEST_F(DeviceMemoryTest, EndedLeaseFreesMemory) {
  const auto client = Connect();
  const size_t descriptors = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    CardRows card;
    const auto memory = client->ShareDevice(card.rows());
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ((*memory)->sharing(), absl::OkStatus());
  }
  EXPECT_TRUE(Becomes([&] { return OpenDescriptors() == descriptors; }));
}

TEST_F(DeviceMemoryTest, InvalidRequestsLeakNoDescriptor) {
  const auto link = ConnectMemory();
  CardRows card;
  const size_t descriptors = OpenDescriptors();
  const devices::MemoryIdentity identity = FakeCardMemory::Identity();
  EXPECT_EQ(link->Import({devices::MemoryKind::kCuda, "another card, uu", {}}, card.handle()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto refused = [&](devices::MemoryHandle handle) {
    const auto made = link->Import(identity, handle);
    return client::ErrorOf(made.status()).value_or(RowError()).reason;
  };
  devices::MemoryHandle handle = card.handle();
  handle.descriptor = -1;
  EXPECT_EQ(refused(handle), v1::MISSING_FIELD);
  handle.descriptor = STDERR_FILENO;
  EXPECT_EQ(refused(handle), v1::OUT_OF_RANGE) << "no memory";
  handle = card.handle();
  handle.bytes = 4 * kBytes + 1;
  EXPECT_EQ(refused(handle), v1::OUT_OF_RANGE);
  handle.bytes = kBytes - 1;
  EXPECT_EQ(refused(handle), v1::OUT_OF_RANGE);
  EXPECT_TRUE(Becomes([&] { return OpenDescriptors() == descriptors; }));
}

// Sends the most descriptors that a packet holds, again and again, with requests that want none or one.
TEST_F(DeviceMemoryTest, DescriptorFloodLeaksNone) {
  auto socket = client::ConnectUnix(address_, SOCK_SEQPACKET);
  ASSERT_TRUE(socket.ok());
  std::array<char, 4096> packet;
  ASSERT_GT(service::ReceivePacket(socket->get(), packet, nullptr, 0), 0);
  CardRows card;
  const size_t before = OpenDescriptors();
  v1::MemoryRequest unregister;
  unregister.mutable_unregister_region()->set_region_id(1);
  v1::MemoryRequest import;
  service::EncodeIdentity(FakeCardMemory::Identity(), import.mutable_register_device_region()->mutable_device());
  import.mutable_register_device_region()->set_bytes(kBytes);
  for (int i = 0; i < 50; ++i) {
    const std::string request = (i % 2 == 0 ? unregister : import).SerializeAsString();
    ASSERT_TRUE(SendFlood(socket->get(), request, card.handle().descriptor, 200));
    const ssize_t size = service::ReceivePacket(socket->get(), packet, nullptr, 0);
    v1::MemoryResponse response;
    ASSERT_TRUE(size > 0 && response.ParseFromArray(packet.data(), static_cast<int>(size)));
    EXPECT_TRUE(response.has_error()) << "of several descriptors none is the one that was meant";
    EXPECT_TRUE(Becomes([&] { return OpenDescriptors() == before; }));
  }
}

// Its rows wait for the device when its connection and its stream go.
TEST_F(DeviceMemoryTest, DeadWorkerLeavesNothing) {
  server_.device().Hold();
  {
    const auto client = Connect();
    CardRows card;
    const auto memory = client->ShareDevice(card.rows());
    ASSERT_TRUE(memory.ok() && (*memory)->sharing().ok());
    Sequences sequences(client.get(), 1);
    std::atomic<bool> done = false;
    ASSERT_TRUE(client
                    ->StepAsync({v1::DTYPE_BF16, kVocabulary, {{sequences[0], card.at(0)}}}, {},
                                [&](const auto&) { done = true; })
                    .ok());
    server_.device().AwaitBatch();
  }
  EXPECT_TRUE(Becomes([&] {
    const service::MemoryUse use = server_.engine().regions().use();
    return use.connections == 0 && use.regions == 1;
  })) << "the device still has the region of the row";
  server_.device().Release();
  EXPECT_TRUE(Becomes([&] { return server_.engine().regions().use().regions == 0; }));
  EXPECT_EQ(on_card_, 1);
}

TEST_F(DeviceMemoryOff, TakesNoDescriptorUnlessEnabled) {
  const auto link = ConnectMemory();
  CardRows card;
  const auto made = link->Import(FakeCardMemory::Identity(), card.handle());
  EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition) << "the welcome names no device";

  auto socket = client::ConnectUnix(address_, SOCK_SEQPACKET);
  ASSERT_TRUE(socket.ok());
  std::array<char, 4096> packet;
  ASSERT_GT(service::ReceivePacket(socket->get(), packet, nullptr, 0), 0);
  v1::MemoryRequest import;
  service::EncodeIdentity(FakeCardMemory::Identity(), import.mutable_register_device_region()->mutable_device());
  import.mutable_register_device_region()->set_bytes(kBytes);
  ASSERT_TRUE(service::SendPacket(socket->get(), import.SerializeAsString(), card.handle().descriptor, 0));
  const ssize_t size = service::ReceivePacket(socket->get(), packet, nullptr, 0);
  v1::MemoryResponse response;
  ASSERT_TRUE(size > 0 && response.ParseFromArray(packet.data(), static_cast<int>(size)));
  EXPECT_EQ(response.error().limit(), "connection_device_bytes 0");

  const auto client = Connect();
  const auto memory = client->ShareDevice(card.rows());
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ((*memory)->sharing(), absl::FailedPreconditionError("the server takes no memory of this device"));
  Sequences sequences(client.get(), 2);
  StepAll(client.get(), &sequences, &card, {0, kRowBytes});
  EXPECT_EQ(card.reads, 10);
}

}  // namespace
}  // namespace sortition::server::device_memory_test
