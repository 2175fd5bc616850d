// Memory regions, the host's and a device's: connections that register, import, unregister, leave and lie, and steps
// that name any range of any region, against a plain account of all regions and their owners.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/memory/region_table.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/fake_card_memory.h"
#include "tests/support/messages.h"
#include "tests/support/recording_sink.h"
#include "tests/support/test_engine.h"

namespace sortition::fuzz {
namespace {

using service::MemoryConnection;
using service::Reason;
using service::Refusal;
using testing::RecordingSink;

constexpr uint32_t kVocabulary = 40;
constexpr uint64_t kRowBytes = kVocabulary * sizeof(float);
constexpr uint64_t kPage = 4096;

service::Limits SmallLimits() {
  service::Limits limits;
  limits.max_memory_connections = 3;
  limits.max_memory_bytes = 12 * kPage;
  limits.connection_memory_bytes = 6 * kPage;
  limits.connection_device_bytes = 4 * kPage;
  limits.connection_regions = 3;
  return limits;
}

// A region as its client has it mapped.
struct Mapping {
  Mapping(int descriptor, uint64_t bytes) : size(bytes) {
    void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) Fail("a region cannot be mapped");
    data = static_cast<std::byte*>(at);
  }
  ~Mapping() { munmap(data, size); }
  const uint64_t size;
  std::byte* data;
};

struct Client {
  std::shared_ptr<MemoryConnection> connection;
  std::map<uint64_t, std::unique_ptr<Mapping>> regions;  // by id
};

class World {
 public:
  explicit World(Input* input) : input_(*input) { Attach(nullptr); }
  ~World() { session_->Close(); }

  void Act() {
    switch (input_.Below(10)) {
      case 0:
        Connect();
        break;
      case 1:
        Register();
        break;
      case 2:
        Import();
        break;
      case 3:
        Unregister();
        break;
      case 4:
        Leave();
        break;
      case 5:
        Hold();
        break;
      case 6:
        Write();
        break;
      case 7:
        if (Client* const client = AnyClient()) Attach(client);
        break;
      default:
        Step();
    }
    ExpectUse();
  }

 private:
  Client* AnyClient() { return clients_.empty() ? nullptr : clients_[input_.Below(uint32_t(clients_.size()))].get(); }

  // Returns an id of the past, of any client, or of none.
  uint64_t AnyId() { return input_.OneIn(8) ? uint64_t{input_.Word()} << 32 : input_.Below(uint32_t(last_id_) + 2); }

  void Connect() {
    auto connected = engine_->regions().Connect([] {});
    const bool is_full = clients_.size() == SmallLimits().max_memory_connections;
    if (std::holds_alternative<Refusal>(connected) != is_full) Fail("a wrong word about connections");
    if (is_full) return;
    clients_.push_back(std::make_unique<Client>());
    clients_.back()->connection = std::get<std::shared_ptr<MemoryConnection>>(std::move(connected));
  }

  void Register() {
    Client* const client = AnyClient();
    if (client == nullptr) return;
    const uint64_t bytes = input_.OneIn(6) ? uint64_t{input_.Word()} << input_.Below(33) : input_.Below(4 * kPage);
    const uint64_t size = (bytes + kPage - 1) / kPage * kPage;
    const service::Limits limits = SmallLimits();
    const Account own = UseOf(client);
    const bool fits = bytes > 0 && bytes <= limits.connection_memory_bytes && HasRoomForRegion(client) &&
                      own.bytes + size <= limits.connection_memory_bytes && Bytes() + size <= limits.max_memory_bytes;
    auto made = client->connection->Register(bytes);
    if (std::holds_alternative<MemoryConnection::Registered>(made) != fits) Fail("a wrong word about room");
    if (!fits) return;
    auto& registered = std::get<MemoryConnection::Registered>(made);
    if (registered.id <= last_id_ || registered.bytes != size) Fail("not the region that was asked for");
    last_id_ = registered.id;
    client->regions[registered.id] = std::make_unique<Mapping>(registered.descriptor.get(), size);
    accounts_.push_back({.owner = client, .id = registered.id, .bytes = size});
  }

  // Memory that the client has made on the device, described truly or not.
  void Import() {
    Client* const client = AnyClient();
    if (client == nullptr) return;
    const testing::FakeCardMemory made(1 + input_.Below(4 * kPage));
    devices::MemoryHandle handle = made.handle();
    const bool is_memory = !input_.OneIn(8);
    if (!is_memory) handle.descriptor = input_.OneIn(2) ? -1 : STDERR_FILENO;
    if (input_.OneIn(6)) handle.bytes = uint64_t{input_.Word()} << input_.Below(33);
    const uint64_t most = SmallLimits().connection_device_bytes;
    const bool fits = is_memory && handle.bytes == made.bytes() && HasRoomForRegion(client) &&
                      UseOf(client).device_bytes + handle.bytes <= most;
    auto imported = client->connection->Import(engine_->devices().front().get(), handle);
    if (std::holds_alternative<uint64_t>(imported) != fits) Fail("a wrong word about a device's memory");
    if (!fits) return;
    const uint64_t id = std::get<uint64_t>(imported);
    if (id <= last_id_) Fail("an id that was used before");
    last_id_ = id;
    client->regions[id] = std::make_unique<Mapping>(handle.descriptor, handle.bytes);
    accounts_.push_back({.owner = client, .id = id, .device_bytes = handle.bytes});
  }

  void Unregister() {
    Client* const client = AnyClient();
    if (client == nullptr) return;
    const uint64_t id = AnyId();
    const std::optional<Refusal> refusal = client->connection->Unregister(id);
    if (refusal.has_value() == client->regions.contains(id)) Fail(absl::StrCat("a wrong word about region ", id));
    client->regions.erase(id);
    Forget([&](const Account& account) { return account.owner == client && account.id == id; });
  }

  void Leave() {
    Client* const client = AnyClient();
    if (client == nullptr) return;
    client->connection->Close();
    Forget([&](const Account& account) { return account.owner == client; });
    // Its accounts stay for as long as its regions are read; no other client is taken for it.
    gone_.push_back(std::make_unique<Client>());
    for (Account& account : accounts_) {
      if (account.owner == client) account.owner = gone_.back().get();
    }
    if (attached_ == client) attached_ = gone_.back().get();
    std::erase_if(clients_, [&](const auto& other) { return other.get() == client; });
  }

  // Holds a region, as a step does while it waits or runs, or ends such a hold.
  void Hold() {
    if (accounts_.empty()) return;
    Account& account = accounts_[input_.Below(uint32_t(accounts_.size()))];
    if (account.held != nullptr) {
      account.held = nullptr;
      std::erase_if(accounts_, [](const Account& other) { return !other.is_known && other.held == nullptr; });
      return;
    }
    account.held = account.owner->connection->Find(account.id);
    if (account.held == nullptr) Fail("a registered region is not known");
  }

  void Write() {
    Client* const client = AnyClient();
    if (client == nullptr || client->regions.empty()) return;
    auto& [id, mapping] = *std::next(client->regions.begin(), input_.Below(uint32_t(client->regions.size())));
    if (mapping->size < kRowBytes) return;
    const uint64_t row = input_.Below(uint32_t(mapping->size / kRowBytes));
    const std::string logits = testing::F32Peak(kVocabulary, input_.Below(kVocabulary));
    std::memcpy(mapping->data + row * kRowBytes, logits.data(), logits.size());
  }

  // Attaches a stream that may name the client's regions; none if null.
  void Attach(Client* client) {
    if (session_ != nullptr) session_->Close();
    attached_ = client;
    sink_ = std::make_shared<RecordingSink>();
    session_ = std::make_unique<service::Session>(engine_.get(), "fuzz", sink_);
    Send(testing::Hello("worker"));
    if (client != nullptr) {
      v1::StreamRequest message;
      message.mutable_attach_memory()->set_token(client->connection->token());
      Send(message);
    }
    v1::OpenSequence open = testing::MakeOpen("request", ++epoch_, kVocabulary);
    open.mutable_parameters()->set_temperature(0);
    Send(testing::Message(open));
    const auto opened = sink_->Take([](const v1::StreamResponse& message) { return message.has_opened(); });
    if (!opened || !opened->opened().has_state()) Fail("not opened");
    step_id_ = 0;
  }

  void Send(const v1::StreamRequest& message) {
    const testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
    auto frame = service::DecodeFrame(delivery.segments, delivery.bytes);
    if (!std::holds_alternative<service::Frame>(frame)) Fail("a message was refused as malformed");
    session_->OnFrame(std::move(std::get<service::Frame>(frame)));
    sink_->LetLeave();
  }

  void Step() {
    const uint64_t id = AnyId();
    const bool any_offset = input_.OneIn(4);
    const uint64_t offset = any_offset ? uint64_t{input_.Word()} << input_.Below(33) : 4 * uint64_t{input_.Below(2100)};
    const uint64_t length = input_.OneIn(8) ? uint64_t{input_.Word()} << input_.Below(33) : kRowBytes;

    testing::StepBuilder builder(++batch_id_, kVocabulary);
    builder.AddRow("request", ++step_id_, 0, "");
    v1::StreamRequest request = builder.Build();
    request.clear_payloads();
    auto& range = *request.mutable_step()->mutable_logits()->mutable_source()->mutable_region();
    range.set_region_id(id);
    range.set_offset(offset);
    range.set_length(length);
    bool is_right = Expected(id, offset, length).has_value();
    uint32_t* const word = input_.OneIn(3) ? NameWord(request.mutable_step()->mutable_logits(), &is_right) : nullptr;
    Send(request);
    if (is_right && word != nullptr) {
      if (sink_->Take([](const v1::StreamResponse& message) { return message.has_results(); })) {
        Fail("a step did not wait for its word");
      }
      std::atomic_ref(*word).fetch_add(1, std::memory_order_release);
      while (engine_->unready_steps().count() > 0) std::this_thread::yield();
    }
    const auto answer = Answer(is_right && word != nullptr);
    if (is_right && word != nullptr) --*word;  // it may be a logit of later rows
    if (!answer || answer->results().batch_id() != batch_id_) Fail("no answer");

    const std::optional<uint32_t> expected = is_right ? Expected(id, offset, length) : std::nullopt;
    const v1::StepResults& results = answer->results();
    if (!expected) {
      if (!results.has_error()) Fail(absl::StrCat("a step read region ", id, " at ", offset));
      return;
    }
    if (results.rows_size() != 1 || results.rows(0).draw().token() != *expected) {
      Fail(absl::StrCat("expected token ", *expected, ": ", answer->ShortDebugString()));
    }
  }

  // Names any word of any region, which is set, or is to be raised by one: then it is returned. `*is_right` becomes
  // false if there is no such word.
  uint32_t* NameWord(v1::LogitsTensor* logits, bool* is_right) {
    v1::ReadyWord& ready = *logits->mutable_ready();
    ready.set_region_id(AnyId());
    ready.set_offset(input_.OneIn(4) ? uint64_t{input_.Word()} << input_.Below(33) : 4 * uint64_t{input_.Below(2100)});
    const auto named = [&](const Account& account) {
      return account.owner == attached_ && account.id == ready.region_id() && account.is_known;
    };
    const auto account = std::ranges::find_if(accounts_, named);
    if (attached_ == nullptr || account == accounts_.end() || account->device_bytes > 0 || ready.offset() % 4 != 0 ||
        ready.offset() > account->bytes - 4) {
      *is_right = false;
      return nullptr;
    }
    auto* const word = reinterpret_cast<uint32_t*>(attached_->regions.at(account->id)->data + ready.offset());
    // Within the row it would be a logit, and differ from others by less than the law tells apart.
    const auto& row = logits->source().region();
    const bool in_row = row.region_id() == ready.region_id() && ready.offset() + 4 > row.offset() &&
                        ready.offset() < row.offset() + row.length();
    const bool is_set = in_row || input_.OneIn(2);
    ready.set_value(is_set ? *word - input_.Below(3) : *word + 1);
    return is_set ? nullptr : word;
  }

  // The answer of a step that has waited comes from another thread.
  std::optional<v1::StreamResponse> Answer(bool has_waited) {
    const auto is_results = [](const v1::StreamResponse& message) { return message.has_results(); };
    auto answer = sink_->Take(is_results);
    while (has_waited && !answer) {
      std::this_thread::yield();
      answer = sink_->Take(is_results);
    }
    return answer;
  }

  // The greedy token; none if the step must be refused.
  std::optional<uint32_t> Expected(uint64_t id, uint64_t offset, uint64_t length) const {
    if (attached_ == nullptr || !attached_->regions.contains(id)) return std::nullopt;
    const Mapping& mapping = *attached_->regions.at(id);
    // Planted defect: the account forgets the last logits.
    const uint64_t end = planted ? mapping.size - std::min(mapping.size, 16 * sizeof(float)) : mapping.size;
    if (length != kRowBytes || offset % sizeof(float) != 0 || offset > end || length > end - offset) return {};
    float logits[kVocabulary];
    std::memcpy(logits, mapping.data + offset, kRowBytes);
    return uint32_t(std::max_element(logits, logits + kVocabulary) - logits);
  }

  // A region that counts: known to its client, or being read.
  struct Account {
    Client* owner = nullptr;
    uint64_t id = 0;
    uint64_t bytes = 0;         // of the host
    uint64_t device_bytes = 0;  // of the device
    std::shared_ptr<const service::Region> held = nullptr;
    bool is_known = true;
  };

  // Returns the use of all regions of the client.
  Account UseOf(const Client* client) const {
    Account use;
    for (const Account& account : accounts_) {
      if (account.owner != client) continue;
      use.bytes += account.bytes;
      use.device_bytes += account.device_bytes;
    }
    return use;
  }
  bool HasRoomForRegion(const Client* client) const {
    const auto count = std::ranges::count(accounts_, client, [](const Account& account) { return account.owner; });
    return count < SmallLimits().connection_regions;
  }

  uint64_t Bytes() const {
    uint64_t bytes = 0;
    for (const Account& account : accounts_) bytes += account.bytes;
    return bytes;
  }

  void Forget(const auto& is_it) {
    for (Account& account : accounts_) account.is_known = account.is_known && !is_it(account);
    std::erase_if(accounts_, [](const Account& account) { return !account.is_known && account.held == nullptr; });
  }

  bool IsExpected(const service::MemoryUse& use) const {
    return use.bytes == Bytes() && use.regions == accounts_.size() && use.connections == clients_.size();
  }

  void ExpectUse() {
    service::MemoryUse use = engine_->regions().use();
    // The thread that runs steps after their word lets go of their memory a moment after the answer.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!IsExpected(use) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
      use = engine_->regions().use();
    }
    if (!IsExpected(use)) {
      Fail(absl::StrCat(use.bytes, " bytes in ", use.regions, " regions of ", use.connections,
                        " connections, expected ", Bytes(), " in ", accounts_.size(), " of ", clients_.size()));
    }
  }

  Input& input_;
  testing::TestEngine engine_ = testing::TestEngine::OnFake(
      SmallLimits(), {.memory = 1, .identity = testing::FakeCardMemory::Identity(), .synchronous = true});
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Client>> gone_;
  std::vector<Account> accounts_;
  uint64_t last_id_ = 0;
  Client* attached_ = nullptr;
  std::shared_ptr<RecordingSink> sink_;
  std::unique_ptr<service::Session> session_;
  uint64_t epoch_ = 0;
  uint64_t batch_id_ = 0;
  uint64_t step_id_ = 0;
};

}  // namespace

void Run(Bytes bytes) {
  Input input(bytes);
  World world(&input);
  for (int acts = 0; acts < 200 && !input.empty(); ++acts) world.Act();
}

}  // namespace sortition::fuzz
