// The memory that a stream shares with its server. Rows that the caller writes there travel without a copy; other rows
// are copied there instead of through a socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/transport/device_rows.h"
#include "client/cpp/transport/memory_link.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// A place in shared memory that a step can name.
struct MemoryPlace {
  uint64_t region_id = 0;
  uint64_t offset = 0;
  bool on_device = false;
};

// The shared memory of one stream. Thread-safe.
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  // Connects to the memory socket that a stream's welcome names. Blocks for a round trip. FAILED_PRECONDITION if the
  // stream's server does not listen there, or if this cannot be told; then nothing was requested. `server_user` as in
  // MemoryLink::Connect.
  static absl::StatusOr<std::unique_ptr<MemoryLink>> Connect(const v1::Welcome& welcome,
                                                             std::optional<uint32_t> server_user,
                                                             const RetryBudget& budget);

  // Gets `bytes` for copies, or less if the server gives less. Blocks for a round trip and while the pages are cleared.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Make(std::unique_ptr<MemoryLink> link, uint64_t bytes,
                                                            const RetryBudget& budget);

  // Ends the connection, after the stream's end: the server forgets the regions. Mappings live as long as their owners.
  void Disconnect() { link_->Disconnect(); }
  bool IsConnected() const { return link_->IsConnected(); }

  const std::string& token() const { return link_->token(); }

  // Gets a region of at least `bytes` for the caller, which is returned to the server with its last reference.
  absl::StatusOr<std::shared_ptr<MappedRegion>> Allocate(uint64_t bytes);

  // Registers memory of a device with the server, so that steps may name its addresses until Forget. Repeated calls
  // have no effect. Blocks for a round trip. If the server refuses it, Find does not find it, so that its rows are read
  // to the host, and SharingOf returns the reason.
  void Import(const DeviceRows& rows, const RetryBudget& budget = MemoryLink::DefaultBudget())
      ABSL_LOCKS_EXCLUDED(importing_, mutex_);
  // As Client::DeviceMemory.
  absl::Status SharingOf(const DeviceRows& rows) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(const DeviceRows& rows) ABSL_LOCKS_EXCLUDED(importing_, mutex_);

  // Returns the place of the bytes, if all of them lie in one region of this stream, at a multiple of `alignment` in
  // it.
  std::optional<MemoryPlace> Find(std::span<const std::byte> bytes, size_t alignment) const;

  // Takes room for a copy, until the last reference to `lease` is dropped. Nothing if there is too little.
  struct Room {
    MemoryPlace place;
    std::byte* data = nullptr;
    std::shared_ptr<void> lease;
  };
  std::optional<Room> Take(size_t bytes);

 private:
  SharedMemory(std::unique_ptr<MemoryLink> link, std::unique_ptr<MappedRegion> copies);
  void GiveBack(uint64_t offset, uint64_t bytes);
  // A region of the caller.
  struct Region {
    uint64_t id = 0;
    uint64_t bytes = 0;
    bool on_device = false;
  };
  void Forget(const MappedRegion& region);

  const std::unique_ptr<MemoryLink> link_;
  const std::unique_ptr<MappedRegion> copies_;
  absl::Mutex importing_;  // one import at a time, or one end of it; before mutex_
  mutable absl::Mutex mutex_;
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mutex_);  // of copies_: offset to size; none adjoin
  std::map<const std::byte*, Region> regions_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, absl::Status> refused_ ABSL_GUARDED_BY(mutex_);  // imports, by their first address
};

}  // namespace sortition::client
