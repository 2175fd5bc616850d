// A connection to a server's memory socket (memory.proto), and the regions it hands out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/transport/unix_socket.h"
#include "devices/imported_memory.h"
#include "service/memory/descriptor.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::client {

// A region mapped for writing. The mapping lives as long as this object, also when the server has ended.
class MappedRegion {
 public:
  MappedRegion(uint64_t id, std::span<std::byte> bytes) : id_(id), bytes_(bytes) {}
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  uint64_t id() const { return id_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const uint64_t id_;
  const std::span<std::byte> bytes_;
};

// Thread-safe. Destruction ends the connection, and with it the regions' registration.
class MemoryLink {
 public:
  // Returns the budget of a request that names none.
  static RetryBudget DefaultBudget() { return RetryBudget(absl::Seconds(5)); }

  // `address`: "unix:PATH". Blocks for a round trip. PERMISSION_DENIED if the process that listens there belongs
  // neither to this process's user, nor to root, nor to `server_user`.
  static absl::StatusOr<std::unique_ptr<MemoryLink>> Connect(const std::string& address,
                                                             const RetryBudget& budget = DefaultBudget(),
                                                             std::optional<uint32_t> server_user = std::nullopt);

  // Identifies the server, as the welcomes of its streams do; empty if the server does not name itself.
  const std::string& server_instance() const { return server_instance_; }

  // The token by which a stream names this connection.
  const std::string& token() const { return token_; }
  // The server's limit on the bytes of all regions of this connection.
  uint64_t most_bytes() const { return most_bytes_; }

  // Gets a region. Blocks for a round trip and while the pages are cleared. A refusal is returned as a status
  // (ErrorOf). For this and the requests below: if no answer comes in time, the connection is ended.
  absl::StatusOr<std::unique_ptr<MappedRegion>> Register(uint64_t bytes, const RetryBudget& budget = DefaultBudget());
  // Registers memory that this process has allocated on one of the server's devices, and returns the region's id.
  // Blocks for a round trip. FAILED_PRECONDITION if the server takes no memory of that device; otherwise its refusal
  // (ErrorOf).
  absl::StatusOr<uint64_t> Import(const devices::MemoryIdentity& identity, const devices::MemoryHandle& handle,
                                  const RetryBudget& budget = DefaultBudget());
  // Gets a pair of rings (service/memory/ring.h). This connection is then a stream.
  absl::StatusOr<std::unique_ptr<MappedRegion>> OpenRing(const RetryBudget& budget = DefaultBudget());
  // Ends the connection, and with it all registrations. Mappings stay.
  void Disconnect();
  // False after the server has ended the connection.
  bool IsConnected() const;
  // Ends a region's registration: later steps cannot name it. Does not wait for steps in progress.
  void Unregister(uint64_t region_id);

 private:
  explicit MemoryLink(service::Descriptor socket) : socket_(std::move(socket)) {}
  absl::StatusOr<std::unique_ptr<MappedRegion>> AskForMemory(const v1::MemoryRequest& request, uint64_t bytes,
                                                             const RetryBudget& budget);
  // Sends a request, with the descriptor `sent` unless it is -1, and receives the answer, with a descriptor if it has
  // one.
  absl::StatusOr<v1::MemoryResponse> Ask(const v1::MemoryRequest& request, int sent, service::Descriptor* received,
                                         const RetryBudget& budget);
  absl::StatusOr<v1::MemoryResponse> Receive(service::Descriptor* descriptor, const RetryBudget& budget);
  // Returns a packet that has arrived, without blocking.
  absl::StatusOr<v1::MemoryResponse> Take(service::Descriptor* descriptor);

  const service::Descriptor socket_;
  std::string server_instance_;
  std::string token_;
  uint64_t most_bytes_ = 0;
  std::vector<devices::MemoryIdentity> devices_;  // devices whose memory the server takes
  absl::Mutex mutex_;                             // one request at a time
};

}  // namespace sortition::client
