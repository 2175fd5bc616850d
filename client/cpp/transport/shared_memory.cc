// Allocates room for copies, first fit, and finds regions of callers by address.
#include "client/cpp/transport/shared_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::client {
namespace {

// Alignment of copies: a page, which suits vector loads and prefetchers.
constexpr uint64_t kUnit = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryLink>> SharedMemory::Connect(const v1::Welcome& welcome,
                                                                  std::optional<uint32_t> server_user,
                                                                  const RetryBudget& budget) {
  const std::string& address = welcome.memory_address();
  if (address.empty()) return absl::FailedPreconditionError("the server offers no shared memory");
  auto link = MemoryLink::Connect(address, budget, server_user);
  if (!link.ok()) return link.status();
  if (welcome.server_instance().empty() || welcome.server_instance() != (*link)->server_instance()) {
    return absl::FailedPreconditionError(absl::StrCat("another server than the stream's listens at ", address,
                                                      ", or one that does not say which it is"));
  }
  return link;
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Make(std::unique_ptr<MemoryLink> link, uint64_t bytes,
                                                                 const RetryBudget& budget) {
  auto copies = link->Register(std::min(bytes, link->most_bytes()), budget);
  if (!copies.ok()) return copies.status();
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(link), *std::move(copies)));
}

SharedMemory::SharedMemory(std::unique_ptr<MemoryLink> link, std::unique_ptr<MappedRegion> copies)
    : link_(std::move(link)), copies_(std::move(copies)), free_({{0, copies_->bytes().size()}}) {}

absl::StatusOr<std::shared_ptr<MappedRegion>> SharedMemory::Allocate(uint64_t bytes) {
  auto made = link_->Register(bytes);
  if (!made.ok()) return made.status();
  std::shared_ptr<MappedRegion> region(made->release(), [self = shared_from_this()](MappedRegion* last) {
    self->Forget(*last);
    delete last;
  });
  absl::MutexLock lock(&mutex_);
  regions_.emplace(region->bytes().data(), Region{region->id(), region->bytes().size(), false});
  return region;
}

void SharedMemory::Forget(const MappedRegion& region) {
  {
    absl::MutexLock lock(&mutex_);
    regions_.erase(region.bytes().data());
  }
  link_->Unregister(region.id());
}

void SharedMemory::Import(const DeviceRows& rows, const RetryBudget& budget) {
  absl::MutexLock importing(&importing_);
  {
    absl::MutexLock lock(&mutex_);
    if (regions_.contains(rows.data) || refused_.contains(rows.data)) return;
  }
  const auto id = link_->Import(rows.identity, rows.handle, budget);
  absl::MutexLock lock(&mutex_);
  if (id.ok()) {
    regions_.emplace(rows.data, Region{*id, rows.bytes, true});
  } else {
    refused_.emplace(rows.data, id.status());
  }
}

absl::Status SharedMemory::SharingOf(const DeviceRows& rows) const {
  absl::MutexLock lock(&mutex_);
  if (regions_.contains(rows.data)) return absl::OkStatus();
  const auto refused = refused_.find(rows.data);
  return refused == refused_.end() ? absl::UnavailableError("the server has not answered yet") : refused->second;
}

void SharedMemory::Forget(const DeviceRows& rows) {
  absl::MutexLock importing(&importing_);
  uint64_t id;
  {
    absl::MutexLock lock(&mutex_);
    refused_.erase(rows.data);
    const auto region = regions_.find(rows.data);
    if (region == regions_.end()) return;
    id = region->second.id;
    regions_.erase(region);
  }
  link_->Unregister(id);
}

std::optional<MemoryPlace> SharedMemory::Find(std::span<const std::byte> bytes, size_t alignment) const {
  absl::MutexLock lock(&mutex_);
  const auto after = regions_.upper_bound(bytes.data());
  if (after == regions_.begin()) return std::nullopt;
  const auto& [data, region] = *std::prev(after);
  const auto offset = static_cast<uint64_t>(bytes.data() - data);
  if (offset > region.bytes || bytes.size() > region.bytes - offset || offset % alignment != 0) {
    return std::nullopt;
  }
  return MemoryPlace{region.id, offset, region.on_device};
}

std::optional<SharedMemory::Room> SharedMemory::Take(size_t bytes) {
  const uint64_t size = (std::max<uint64_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
  uint64_t offset;
  {
    absl::MutexLock lock(&mutex_);
    const auto fit = std::ranges::find_if(free_, [&](const auto& range) { return range.second >= size; });
    if (fit == free_.end()) return std::nullopt;
    offset = fit->first;
    if (fit->second > size) free_.emplace(offset + size, fit->second - size);
    free_.erase(fit);
  }
  std::shared_ptr<void> lease(nullptr,
                              [self = shared_from_this(), offset, size](void*) { self->GiveBack(offset, size); });
  return Room{{copies_->id(), offset}, copies_->bytes().data() + offset, std::move(lease)};
}

void SharedMemory::GiveBack(uint64_t offset, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && offset + bytes == after->first) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == offset) {
    std::prev(after)->second += bytes;
  } else {
    free_.emplace(offset, bytes);
  }
}

}  // namespace sortition::client
