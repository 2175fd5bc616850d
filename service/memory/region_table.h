// The memory regions of all connections to the memory socket: who has which, how much they may have, and when they are
// gone.
//
// Life of a region: registered -> (unregistered, or its connection has ended) -> released, once nobody reads it any
// more. From the second on its id is unknown; its memory counts until the third. A region is the host's memory, which
// the table makes, or a device's, which the worker has made.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"
#include "service/client_accounts.h"
#include "service/entropy.h"
#include "service/limits.h"
#include "service/memory/descriptor.h"
#include "service/memory/sealed_memory.h"
#include "service/refusal.h"

namespace sortition::service {

class RegionTable;

// What of a table is in use.
struct MemoryUse {
  uint64_t bytes = 0;    // of the host's memory, of regions that are not released
  uint32_t regions = 0;  // that are not released
  uint32_t connections = 0;
};

// A registered region. Whoever holds a reference may read it. Immutable but for its content.
class Region {
 public:
  using Memory =
      std::variant<std::unique_ptr<SealedMemory>, std::shared_ptr<const devices::ImportedMemory>>;  // none null
  // `released` runs when nobody reads the region any more; on any thread.
  Region(uint64_t id, Memory memory, std::function<void()> released)
      : id_(id), memory_(std::move(memory)), released_(std::move(released)) {}
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint64_t id() const { return id_; }
  // Where its bytes are named; of a device's memory the host cannot read there.
  std::span<const std::byte> bytes() const;
  // Null if it is the host's memory.
  const devices::ImportedMemory* imported() const;
  // Of rings only, which both ends write.
  std::byte* data() const { return std::get<0>(memory_)->data(); }

 private:
  const uint64_t id_;
  Memory memory_;
  const std::function<void()> released_;
};

// One connection's regions. Thread-safe.
class MemoryConnection : public std::enable_shared_from_this<MemoryConnection> {
 public:
  ~MemoryConnection();

  // The secret by which a stream names this connection; kTokenBytes.
  const std::string& token() const { return token_; }

  struct Registered {
    uint64_t id;
    uint64_t bytes;
    Descriptor descriptor;
  };
  // OVERLOADED where a quota or the machine's memory does not allow it, OUT_OF_RANGE for what never will be. Blocks for
  // the time it takes to clear the pages.
  std::variant<Registered, Refusal> Register(uint64_t bytes);

  // The worker's own memory on a device, which reads it from now on. OVERLOADED where a quota does not allow it,
  // OUT_OF_RANGE for what never will be or the device's driver does not take. Blocks for as long as the driver takes.
  std::variant<uint64_t, Refusal> Import(devices::Device* device, const devices::MemoryHandle& handle);

  // Memory that this process writes too, and steps cannot name; counts like a region. Same refusals.
  struct Ring {
    std::shared_ptr<const Region> memory;
    Descriptor descriptor;
  };
  std::variant<Ring, Refusal> MakeRing(uint64_t bytes);

  // From its return on the id is unknown; `released` tells when the memory is free. UNKNOWN_REGION if it is already.
  std::optional<Refusal> Unregister(uint64_t id);

  // Null if this connection has no such region.
  std::shared_ptr<const Region> Find(uint64_t id) const;

  // The regions that were released since the last call.
  std::vector<uint64_t> TakeReleased();

  // The client has gone: every id is unknown from now on, and nothing can be registered. Idempotent.
  void Close();

 private:
  friend class RegionTable;
  std::variant<Ring, Refusal> Make(uint64_t bytes, SealedMemory::Access access, const char* field);
  struct Accounts;
  struct Releases;
  struct Charge;
  std::optional<Refusal> Take(const Charge& charge, const char* field);
  void GiveBack(const Charge& charge);
  std::shared_ptr<const Region> MakeRegion(Region::Memory memory, const Charge& charge);
  void Add(std::shared_ptr<const Region> region);
  MemoryConnection(const Limits& limits, std::string token, std::shared_ptr<Accounts> accounts,
                   std::shared_ptr<ClientAccount> client, std::function<void()> on_released);

  const Limits limits_;
  const std::string token_;
  const std::shared_ptr<Accounts> accounts_;     // of all connections; outlives the table while regions are read
  const std::shared_ptr<ClientAccount> client_;  // null: nobody's bounds
  const std::shared_ptr<Releases> releases_;     // of this connection; the same
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Region>> regions_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class RegionTable {
 public:
  static constexpr size_t kTokenBytes = 16;
  static constexpr size_t kInstanceBytes = 16;

  // `entropy` outlives the table; tokens and the instance come from it.
  RegionTable(const Limits& limits, Entropy* entropy);
  ~RegionTable();

  // A client has come. OVERLOADED while there are as many as there may be. `on_released` is called whenever
  // TakeReleased has something new, on any thread; it must not block. It is not called after the connection's Close.
  // `client`: whose bounds hold, too; null = nobody's.
  std::variant<std::shared_ptr<MemoryConnection>, Refusal> Connect(std::function<void()> on_released,
                                                                   std::shared_ptr<ClientAccount> client = nullptr);

  // Null if there is no such connection.
  std::shared_ptr<MemoryConnection> Find(const std::string& token) const;

  // Where clients connect, as Welcome says it; empty = nowhere. Set once, before the first stream.
  void SetAddress(std::string address) { address_ = std::move(address); }
  const std::string& address() const { return address_; }
  // Of this table alone: by which a client knows that what listens at the address is the server of its stream.
  const std::string& instance() const { return instance_; }

  MemoryUse use() const;

 private:
  const Limits limits_;
  Entropy& entropy_;
  const std::string instance_;
  const std::shared_ptr<MemoryConnection::Accounts> accounts_;
  std::string address_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<MemoryConnection>> connections_ ABSL_GUARDED_BY(mutex_);  // by token
};

}  // namespace sortition::service
