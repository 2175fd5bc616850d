// Quotas, ids and tokens of regions.
#include "service/memory/region_table.h"

#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

Refusal Full(std::string field, std::string limit, std::string message) {
  return Refusal{Reason::kOverloaded, std::move(field), std::move(limit), std::move(message), kRetryAfter};
}

std::string RandomBytes(size_t count, Entropy* entropy) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    const uint64_t word = entropy->Draw();
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  return bytes;
}

std::optional<Refusal> CheckRegion(uint64_t bytes, const Bound& most, const char* field) {
  if (bytes != 0 && bytes <= most.value) return std::nullopt;
  return Refusal{Reason::kOutOfRange, absl::StrCat(field, ".bytes"), bytes == 0 ? "> 0" : most.Text(),
                 absl::StrCat(bytes, " bytes are no region")};
}

}  // namespace

// A region's part of the quotas.
struct MemoryConnection::Charge {
  uint64_t bytes = 0;         // of host memory
  uint64_t device_bytes = 0;  // of device memory
};

// Totals of all connections of a table. Thread-safe.
struct MemoryConnection::Accounts {
  // Returns false, and takes nothing, if the total would exceed `most`.
  bool Take(uint64_t bytes, uint64_t most) {
    absl::MutexLock lock(&mutex);
    if (bytes > most || use.bytes > most - bytes) return false;
    use.bytes += bytes;
    ++use.regions;
    return true;
  }
  void GiveBack(uint64_t bytes) {
    absl::MutexLock lock(&mutex);
    use.bytes -= bytes;
    --use.regions;
  }

  std::atomic<uint64_t> next_id = 1;
  mutable absl::Mutex mutex;
  MemoryUse use ABSL_GUARDED_BY(mutex);
};

// The used part of a connection's quota, and the regions released since the last report. Thread-safe.
struct MemoryConnection::Releases {
  absl::Mutex mutex;
  std::function<void()> notify ABSL_GUARDED_BY(mutex);  // null once the connection has ended
  Charge used ABSL_GUARDED_BY(mutex);
  uint32_t regions ABSL_GUARDED_BY(mutex) = 0;
  std::vector<uint64_t> released ABSL_GUARDED_BY(mutex);

  // Returns the limit that would be exceeded, if any; then it takes nothing.
  std::optional<Bound> Take(const Charge& more, const Bounds& bounds) {
    absl::MutexLock lock(&mutex);
    const std::tuple<uint64_t, uint64_t, Bound> parts[] = {
        {regions, 1, bounds.connection_regions()},
        {used.bytes, more.bytes, bounds.connection_memory_bytes()},
        {used.device_bytes, more.device_bytes, bounds.connection_device_bytes()},
    };
    for (const auto& [has, wants, most] : parts) {
      if (wants > most.value || has > most.value - wants) return most;
    }
    used.bytes += more.bytes;
    used.device_bytes += more.device_bytes;
    ++regions;
    return std::nullopt;
  }
  void GiveBack(const Charge& less) {
    absl::MutexLock lock(&mutex);
    TakeOff(less);
  }
  void Released(uint64_t id, const Charge& less) {
    absl::MutexLock lock(&mutex);
    TakeOff(less);
    if (notify == nullptr) return;
    released.push_back(id);
    notify();
  }

 private:
  void TakeOff(const Charge& less) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    used.bytes -= less.bytes;
    used.device_bytes -= less.device_bytes;
    --regions;
  }
};

Region::~Region() {
  memory_ = {};
  released_();
}

std::span<const std::byte> Region::bytes() const {
  return std::visit([](const auto& memory) { return memory->bytes(); }, memory_);
}

const devices::ImportedMemory* Region::imported() const {
  const auto* const imported = std::get_if<std::shared_ptr<const devices::ImportedMemory>>(&memory_);
  return imported == nullptr ? nullptr : imported->get();
}

MemoryConnection::MemoryConnection(const Limits& limits, std::string token, std::shared_ptr<Accounts> accounts,
                                   std::shared_ptr<ClientAccount> client, std::function<void()> on_released)
    : limits_(limits),
      token_(std::move(token)),
      accounts_(std::move(accounts)),
      client_(std::move(client)),
      releases_(std::make_shared<Releases>()) {
  absl::MutexLock lock(&releases_->mutex);
  releases_->notify = std::move(on_released);
}

MemoryConnection::~MemoryConnection() { Close(); }

std::optional<Refusal> MemoryConnection::Take(const Charge& charge, const char* field) {
  if (const std::optional<Bound> exceeded = releases_->Take(charge, Bounds(limits_))) {
    return Full(field, exceeded->Text(), "this connection has as much as it may have");
  }
  if (!accounts_->Take(charge.bytes, limits_.max_memory_bytes)) {
    releases_->GiveBack(charge);
    return Full(field, Bounds(limits_).max_memory_bytes().Text(),
                "all connections together have as much as they may have");
  }
  if (client_ == nullptr) return std::nullopt;
  std::optional<Refusal> refusal = client_->TakeRegion(charge.bytes, field);
  if (refusal) {
    accounts_->GiveBack(charge.bytes);
    releases_->GiveBack(charge);
  }
  return refusal;
}

void MemoryConnection::GiveBack(const Charge& charge) {
  if (client_ != nullptr) client_->GiveBackRegion(charge.bytes);
  accounts_->GiveBack(charge.bytes);
  releases_->GiveBack(charge);
}

std::shared_ptr<const Region> MemoryConnection::MakeRegion(Region::Memory memory, const Charge& charge) {
  const uint64_t id = accounts_->next_id.fetch_add(1, std::memory_order_relaxed);
  return std::make_shared<const Region>(id, std::move(memory),
                                        [accounts = accounts_, releases = releases_, client = client_, id, charge] {
                                          if (client != nullptr) client->GiveBackRegion(charge.bytes);
                                          accounts->GiveBack(charge.bytes);
                                          releases->Released(id, charge);
                                        });
}

void MemoryConnection::Add(std::shared_ptr<const Region> region) {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(!closed_);
  const uint64_t id = region->id();
  regions_.emplace(id, std::move(region));
}

std::variant<MemoryConnection::Ring, Refusal> MemoryConnection::Make(uint64_t bytes, SealedMemory::Access access,
                                                                     const char* field) {
  const Bound most = Bounds(limits_).connection_memory_bytes();
  if (auto refusal = CheckRegion(bytes, most, field)) return *std::move(refusal);
  const Charge charge = {.bytes = SealedMemory::WholePages(bytes)};
  if (auto refusal = Take(charge, field)) return *std::move(refusal);
  auto memory = SealedMemory::Make(bytes, access);
  if (!memory.ok()) {
    GiveBack(charge);
    return Full(field, "", std::string(memory.status().message()));
  }
  SORTITION_CHECK((*memory)->bytes().size() == charge.bytes);
  Descriptor descriptor = (*memory)->TakeDescriptor();
  return Ring{MakeRegion(*std::move(memory), charge), std::move(descriptor)};
}

std::variant<MemoryConnection::Registered, Refusal> MemoryConnection::Register(uint64_t bytes) {
  auto made = Make(bytes, SealedMemory::Access::kRead, "register_region");
  if (auto* refusal = std::get_if<Refusal>(&made)) return std::move(*refusal);
  Ring& ring = std::get<Ring>(made);
  Registered registered{ring.memory->id(), ring.memory->bytes().size(), std::move(ring.descriptor)};
  Add(std::move(ring.memory));
  return registered;
}

std::variant<uint64_t, Refusal> MemoryConnection::Import(devices::Device* device, const devices::MemoryHandle& handle) {
  constexpr char kField[] = "register_device_region";
  const Bound most = Bounds(limits_).connection_device_bytes();
  if (auto refusal = CheckRegion(handle.bytes, most, kField)) return *std::move(refusal);
  const Charge charge = {.device_bytes = handle.bytes};
  if (auto refusal = Take(charge, kField)) return *std::move(refusal);
  auto memory = device->Import(handle);
  if (!memory.ok()) {
    GiveBack(charge);
    std::string why = absl::StrCat(device->description().name, ": ", memory.status().message());
    if (absl::IsResourceExhausted(memory.status())) return Full(kField, "", std::move(why));
    return Refusal{Reason::kOutOfRange, kField, "memory that its device takes", std::move(why)};
  }
  std::shared_ptr<const Region> region = MakeRegion(*std::move(memory), charge);
  const uint64_t id = region->id();
  Add(std::move(region));
  return id;
}

std::variant<MemoryConnection::Ring, Refusal> MemoryConnection::MakeRing(uint64_t bytes) {
  return Make(bytes, SealedMemory::Access::kReadWrite, "open_ring");
}

std::optional<Refusal> MemoryConnection::Unregister(uint64_t id) {
  std::shared_ptr<const Region> last;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  const auto it = regions_.find(id);
  if (it == regions_.end()) {
    return Refusal{Reason::kUnknownRegion, "unregister_region.region_id", "",
                   absl::StrCat("this connection has no region ", id)};
  }
  last = std::move(it->second);
  regions_.erase(it);
  return std::nullopt;
}

std::shared_ptr<const Region> MemoryConnection::Find(uint64_t id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = regions_.find(id);
  return it == regions_.end() ? nullptr : it->second;
}

std::vector<uint64_t> MemoryConnection::TakeReleased() {
  absl::MutexLock lock(&releases_->mutex);
  return std::exchange(releases_->released, {});
}

void MemoryConnection::Close() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Region>> last;
  {
    absl::MutexLock lock(&releases_->mutex);
    releases_->notify = nullptr;
  }
  absl::MutexLock lock(&mutex_);
  if (std::exchange(closed_, true)) return;
  last.swap(regions_);
  absl::MutexLock accounts_lock(&accounts_->mutex);
  --accounts_->use.connections;
}

RegionTable::RegionTable(const Limits& limits, Entropy* entropy)
    : limits_(limits),
      entropy_(*entropy),
      instance_(RandomBytes(kInstanceBytes, entropy)),
      accounts_(std::make_shared<MemoryConnection::Accounts>()) {}

RegionTable::~RegionTable() = default;

std::variant<std::shared_ptr<MemoryConnection>, Refusal> RegionTable::Connect(std::function<void()> on_released,
                                                                              std::shared_ptr<ClientAccount> client) {
  std::string token = RandomBytes(kTokenBytes, &entropy_);
  absl::MutexLock lock(&mutex_);
  {
    absl::MutexLock accounts_lock(&accounts_->mutex);
    if (accounts_->use.connections >= limits_.max_memory_connections) {
      return Full("", Bounds(limits_).max_memory_connections().Text(), "as many clients are connected as there may be");
    }
    ++accounts_->use.connections;
  }
  absl::erase_if(connections_, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<MemoryConnection> connection(
      new MemoryConnection(limits_, token, accounts_, std::move(client), std::move(on_released)));
  connections_.emplace(std::move(token), connection);
  return connection;
}

std::shared_ptr<MemoryConnection> RegionTable::Find(const std::string& token) const {
  absl::MutexLock lock(&mutex_);
  const auto it = connections_.find(token);
  return it == connections_.end() ? nullptr : it->second.lock();
}

MemoryUse RegionTable::use() const {
  absl::MutexLock lock(&accounts_->mutex);
  return accounts_->use;
}

}  // namespace sortition::service
