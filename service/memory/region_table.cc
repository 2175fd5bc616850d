// Quotas, ids and tokens of regions.
#include "service/memory/region_table.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

Refusal Full(std::string field, std::string limit, std::string message) {
  return Refusal{Reason::kOverloaded, std::move(field), std::move(limit), std::move(message), kRetryAfter};
}

}  // namespace

// What all connections of a table have together. Thread-safe.
struct MemoryConnection::Accounts {
  // False if it would be more than `most`.
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

// What of a connection's quota is in use, and what has become free. Thread-safe.
struct MemoryConnection::Releases {
  absl::Mutex mutex;
  std::function<void()> notify ABSL_GUARDED_BY(mutex);  // null once the connection has ended
  uint64_t bytes ABSL_GUARDED_BY(mutex) = 0;
  uint32_t regions ABSL_GUARDED_BY(mutex) = 0;
  std::vector<uint64_t> released ABSL_GUARDED_BY(mutex);

  bool Take(uint64_t more, uint64_t most_bytes, uint32_t most_regions) {
    absl::MutexLock lock(&mutex);
    if (regions >= most_regions || more > most_bytes || bytes > most_bytes - more) return false;
    bytes += more;
    ++regions;
    return true;
  }
  void GiveBack(uint64_t less) {
    absl::MutexLock lock(&mutex);
    bytes -= less;
    --regions;
  }
  void Released(uint64_t id, uint64_t less) {
    absl::MutexLock lock(&mutex);
    bytes -= less;
    --regions;
    if (notify == nullptr) return;
    released.push_back(id);
    notify();
  }
};

Region::~Region() {
  memory_.reset();
  released_();
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

std::variant<MemoryConnection::Ring, Refusal> MemoryConnection::Make(uint64_t bytes, SealedMemory::Access access,
                                                                     const char* field) {
  const uint64_t most = limits_.connection_memory_bytes;
  if (bytes == 0 || bytes > most) {
    return Refusal{Reason::kOutOfRange, absl::StrCat(field, ".bytes"), absl::StrCat("1..", most),
                   absl::StrCat(bytes, " bytes are no region")};
  }
  const uint64_t size = SealedMemory::WholePages(bytes);
  if (!releases_->Take(size, most, limits_.connection_regions)) {
    return Full(field,
                absl::StrCat("connection_memory_bytes ", most, ", connection_regions ", limits_.connection_regions),
                "this connection has as much as it may have");
  }
  if (!accounts_->Take(size, limits_.max_memory_bytes)) {
    releases_->GiveBack(size);
    return Full(field, absl::StrCat("max_memory_bytes ", limits_.max_memory_bytes),
                "all connections together have as much as they may have");
  }
  const auto give_back = [&] {
    accounts_->GiveBack(size);
    releases_->GiveBack(size);
  };
  if (client_ != nullptr) {
    if (auto refusal = client_->TakeRegion(size, field)) {
      give_back();
      return *std::move(refusal);
    }
  }
  auto memory = SealedMemory::Make(bytes, access);
  if (!memory.ok()) {
    give_back();
    if (client_ != nullptr) client_->GiveBackRegion(size);
    return Full(field, "", std::string(memory.status().message()));
  }
  SORTITION_CHECK((*memory)->bytes().size() == size);
  Descriptor descriptor = (*memory)->TakeDescriptor();
  const uint64_t id = accounts_->next_id.fetch_add(1, std::memory_order_relaxed);
  auto region = std::make_shared<const Region>(
      id, std::move(*memory), [accounts = accounts_, releases = releases_, client = client_, id, size] {
        if (client != nullptr) client->GiveBackRegion(size);
        accounts->GiveBack(size);
        releases->Released(id, size);
      });
  return Ring{std::move(region), std::move(descriptor)};
}

std::variant<MemoryConnection::Registered, Refusal> MemoryConnection::Register(uint64_t bytes) {
  auto made = Make(bytes, SealedMemory::Access::kRead, "register_region");
  if (auto* refusal = std::get_if<Refusal>(&made)) return std::move(*refusal);
  Ring& ring = std::get<Ring>(made);
  Registered registered{ring.memory->id(), ring.memory->bytes().size(), std::move(ring.descriptor)};
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(!closed_);
  regions_.emplace(registered.id, std::move(ring.memory));
  return registered;
}

std::variant<MemoryConnection::Ring, Refusal> MemoryConnection::MakeRing(uint64_t bytes) {
  return Make(bytes, SealedMemory::Access::kReadWrite, "open_ring");
}

std::optional<Refusal> MemoryConnection::Unregister(uint64_t id) {
  std::shared_ptr<const Region> last;  // released after the lock
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
    : limits_(limits), entropy_(*entropy), accounts_(std::make_shared<MemoryConnection::Accounts>()) {}

RegionTable::~RegionTable() = default;

std::variant<std::shared_ptr<MemoryConnection>, Refusal> RegionTable::Connect(std::function<void()> on_released,
                                                                              std::shared_ptr<ClientAccount> client) {
  std::string token(kTokenBytes, '\0');
  for (size_t i = 0; i < kTokenBytes; i += sizeof(uint64_t)) {
    const uint64_t word = entropy_.Draw();
    std::memcpy(token.data() + i, &word, sizeof(word));
  }
  absl::MutexLock lock(&mutex_);
  {
    absl::MutexLock accounts_lock(&accounts_->mutex);
    if (accounts_->use.connections >= limits_.max_memory_connections) {
      return Full("", absl::StrCat("max_memory_connections ", limits_.max_memory_connections),
                  "as many clients are connected as there may be");
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
