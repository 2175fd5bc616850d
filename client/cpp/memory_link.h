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
#include "client/cpp/unix_socket.h"
#include "devices/imported_memory.h"
#include "service/memory/descriptor.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::client {

// A region mapped for writing. The mapping lives as long as this, whatever becomes of the server.
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
  // Waits for a server as long as it may be without an answer, when nobody says how long.
  static RetryBudget DefaultBudget() { return RetryBudget(absl::Seconds(5)); }

  // `address`: "unix:PATH". Blocks for a round trip. PERMISSION_DENIED where a process of a user listens who is neither
  // this process's, nor root, nor `server_user`.
  static absl::StatusOr<std::unique_ptr<MemoryLink>> Connect(const std::string& address,
                                                             const RetryBudget& budget = DefaultBudget(),
                                                             std::optional<uint32_t> server_user = std::nullopt);

  // Which server this is, as its streams' welcomes say it; empty if it does not say.
  const std::string& server_instance() const { return server_instance_; }

  // By which a stream names this connection.
  const std::string& token() const { return token_; }
  // What the server lets its regions have together.
  uint64_t most_bytes() const { return most_bytes_; }

  // Blocks for a round trip and for the clearing of the pages. The server's refusal as a status (ErrorOf). Where no
  // answer comes in time, the connection has ended; so it is with the requests below.
  absl::StatusOr<std::unique_ptr<MappedRegion>> Register(uint64_t bytes, const RetryBudget& budget = DefaultBudget());
  // Memory that this process has made on one of the server's devices; the region's id. Blocks until the server has it.
  // FAILED_PRECONDITION where the server takes no memory of that device; otherwise its refusal as a status (ErrorOf).
  absl::StatusOr<uint64_t> Import(const devices::MemoryIdentity& identity, const devices::MemoryHandle& handle,
                                  const RetryBudget& budget = DefaultBudget());
  // A pair of rings (service/memory/ring.h): this connection is a stream from now on.
  absl::StatusOr<std::unique_ptr<MappedRegion>> OpenRing(const RetryBudget& budget = DefaultBudget());
  // Ends the connection, and with it what was registered; mappings stay.
  void Disconnect();
  // False once the server has ended it.
  bool IsConnected() const;
  // Steps cannot name the region any more. Does not wait for those that do.
  void Unregister(uint64_t region_id);

 private:
  explicit MemoryLink(service::Descriptor socket) : socket_(std::move(socket)) {}
  absl::StatusOr<std::unique_ptr<MappedRegion>> AskForMemory(const v1::MemoryRequest& request, uint64_t bytes,
                                                             const RetryBudget& budget);
  // Sends a request, with a descriptor unless that is -1, and receives its answer, with one if the answer has one.
  absl::StatusOr<v1::MemoryResponse> Ask(const v1::MemoryRequest& request, int sent, service::Descriptor* received,
                                         const RetryBudget& budget);
  absl::StatusOr<v1::MemoryResponse> Receive(service::Descriptor* descriptor, const RetryBudget& budget);
  // What has come already.
  absl::StatusOr<v1::MemoryResponse> Take(service::Descriptor* descriptor);

  const service::Descriptor socket_;
  std::string server_instance_;
  std::string token_;
  uint64_t most_bytes_ = 0;
  std::vector<devices::MemoryIdentity> devices_;  // whose memory the server takes
  absl::Mutex mutex_;                             // one request at a time
};

}  // namespace sortition::client
