// Memory regions of all connections to the memory socket: ownership, quotas and release.
//
// Life of a region: registered -> unregistered, by request or because its connection ended -> released, when its last
// reader is gone. Its id is unknown once it is unregistered; its memory counts until it is released. A region is host
// memory, which the table allocates, or device memory, which the worker allocates.
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

// Used amounts of a table.
struct MemoryUse {
  uint64_t bytes = 0;    // host memory of unreleased regions
  uint32_t regions = 0;  // unreleased regions
  uint32_t connections = 0;
};

// A registered region; holders of a reference may read it. Immutable except its content.
class Region {
 public:
  using Memory =
      std::variant<std::unique_ptr<SealedMemory>, std::shared_ptr<const devices::ImportedMemory>>;  // never null
  // `released` is called, on any thread, when the last reader is gone.
  Region(uint64_t id, Memory memory, std::function<void()> released)
      : id_(id), memory_(std::move(memory)), released_(std::move(released)) {}
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint64_t id() const { return id_; }
  // The region's address range. The host cannot read it if it is device memory.
  std::span<const std::byte> bytes() const;
  // Null if it is host memory.
  const devices::ImportedMemory* imported() const;
  // Writable bytes; rings only, which both ends write.
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

  // The secret, of kTokenBytes, by which a stream names this connection.
  const std::string& token() const { return token_; }

  struct Registered {
    uint64_t id;
    uint64_t bytes;
    Descriptor descriptor;
  };
  // Allocates a region. OVERLOADED if a quota or the machine's memory does not allow it now, OUT_OF_RANGE if it never
  // will. Blocks while the pages are cleared.
  std::variant<Registered, Refusal> Register(uint64_t bytes);

  // Registers the worker's own memory on a device, so that the device can read it. OVERLOADED if a quota does not allow
  // it at present, OUT_OF_RANGE if it never will or the device's driver rejects the memory. Blocks for as long as the
  // driver takes.
  std::variant<uint64_t, Refusal> Import(devices::Device* device, const devices::MemoryHandle& handle);

  // Memory that this process writes too and that steps cannot name; counts like a region, with the same refusals.
  struct Ring {
    std::shared_ptr<const Region> memory;
    Descriptor descriptor;
  };
  std::variant<Ring, Refusal> MakeRing(uint64_t bytes);

  // Makes the id unknown; TakeReleased reports when the memory is free. UNKNOWN_REGION if the id is unknown already.
  std::optional<Refusal> Unregister(uint64_t id);

  // Returns null if this connection has no such region.
  std::shared_ptr<const Region> Find(uint64_t id) const;

  // Returns the regions that were released since the last call.
  std::vector<uint64_t> TakeReleased();

  // Ends the connection: all ids become unknown, and nothing can be registered any more. Idempotent.
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
  const std::shared_ptr<ClientAccount> client_;  // null: no per-client bounds
  const std::shared_ptr<Releases> releases_;     // of this connection; outlives it while regions are read
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Region>> regions_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class RegionTable {
 public:
  static constexpr size_t kTokenBytes = 16;
  static constexpr size_t kInstanceBytes = 16;

  // `entropy` outlives the table and supplies tokens and the instance name.
  RegionTable(const Limits& limits, Entropy* entropy);
  ~RegionTable();

  // Adds a connection. OVERLOADED if the maximum number is reached. `on_released` is called, on any thread, whenever
  // TakeReleased has something new; it must not block, and is not called after the connection's Close. `client`: the
  // account whose bounds hold too; null: none.
  std::variant<std::shared_ptr<MemoryConnection>, Refusal> Connect(std::function<void()> on_released,
                                                                   std::shared_ptr<ClientAccount> client = nullptr);

  // Returns null if there is no such connection.
  std::shared_ptr<MemoryConnection> Find(const std::string& token) const;

  // Address of the memory socket for Welcome; empty: there is none. Set once, before the first stream.
  void SetAddress(std::string address) { address_ = std::move(address); }
  const std::string& address() const { return address_; }
  // Unique name of this table. A client compares it to verify that the socket's server is the server of its stream.
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
