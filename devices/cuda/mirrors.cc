// Mirrors change hands on the host, where each chunk's work is waited for.
#include "devices/cuda/mirrors.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/check.h"
#include "kernels/cuda/layout.h"

namespace sortition::devices::cuda {

using kernels::EditOrigin;
using kernels::LogitEdit;
using kernels::RowRequest;
using kernels::cuda::EditPath;

namespace {

// Room to grow by a quarter before the whole list is uploaded again.
uint32_t CapacityFor(size_t edits) {
  constexpr size_t kStep = 64;
  return uint32_t((edits + edits / 4 + kStep) / kStep * kStep);
}

// The changes that lead from version `from` to the row's edits.
std::vector<LogitEdit> ChangesOf(const RowRequest& request, uint64_t changes) {
  const std::span<const uint32_t> last = request.edit_origin.changed.last(changes);
  std::vector<uint32_t> tokens(last.begin(), last.end());
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  std::vector<LogitEdit> edits;
  edits.reserve(tokens.size());
  for (const uint32_t token : tokens) {
    const auto at = std::ranges::lower_bound(request.edits, token, {}, &LogitEdit::token);
    const bool has_one = at != request.edits.end() && at->token == token;
    edits.push_back(has_one ? *at : LogitEdit{.token = token, .flags = kernels::cuda::kEditGone});
  }
  return edits;
}

}  // namespace

Mirrors::~Mirrors() {
  const CurrentContext current(*context_);
  SORTITION_CHECK(taken_.empty());
  DropIdle(nullptr);
}

uint64_t Mirrors::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

std::optional<Mirrors::Mirror> Mirrors::Take(uint64_t list) {
  absl::MutexLock lock(&mutex_);
  if (!taken_.insert(list).second) return std::nullopt;
  const auto found = by_list_.find(list);
  if (found == by_list_.end()) return Mirror{.list = list};
  const Mirror mirror = *found->second;
  idle_.erase(found->second);
  by_list_.erase(found);
  return mirror;
}

bool Mirrors::Allocate(uint32_t capacity, StreamHandle stream, Mirror* mirror) {
  absl::MutexLock lock(&mutex_);
  if (mirror->memory != 0) Free(*mirror, stream);
  *mirror = {.list = mirror->list};
  Mirror larger = {.list = mirror->list, .capacity = capacity};
  while (bytes_ + larger.bytes() > most_bytes_) {
    if (idle_.empty() || idle_.back().used + kIdleSlices > slices_) return false;
    Forget(std::prev(idle_.end()), stream);
  }
  if (context_->api().MemAllocAsync(&larger.memory, larger.bytes(), stream) != Result::kSuccess) return false;
  bytes_ += larger.bytes();
  *mirror = larger;
  return true;
}

void Mirrors::Return(const Mirror& mirror, uint64_t chunk, StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  taken_.erase(mirror.list);
  if (mirror.memory == 0) return;
  if (chunk <= dropped_) return Free(mirror, stream);
  idle_.push_front(mirror);
  idle_.front().used = chunk;
  by_list_[mirror.list] = idle_.begin();
}

void Mirrors::Drop(const Mirror& mirror, StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  taken_.erase(mirror.list);
  if (mirror.memory != 0) Free(mirror, stream);
}

void Mirrors::DropIdle(StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  dropped_ = slices_;
  while (!idle_.empty()) Forget(idle_.begin(), stream);
}

void Mirrors::Free(const Mirror& mirror, StreamHandle stream) {
  context_->api().MemFreeAsync(mirror.memory, stream);
  bytes_ -= mirror.bytes();
}

void Mirrors::Forget(Idle::iterator idle, StreamHandle stream) {
  Free(*idle, stream);
  by_list_.erase(idle->list);
  idle_.erase(idle);
}

Mirrors::OfSlice::OfSlice(Mirrors* mirrors, StreamHandle stream) : mirrors_(mirrors), stream_(stream) {
  if (mirrors_ == nullptr) return;
  absl::MutexLock lock(&mirrors_->mutex_);
  number_ = ++mirrors_->slices_;
}

Mirrors::OfSlice::~OfSlice() {
  if (mirrors_ == nullptr || is_kept_) return;
  for (const auto& [list, used] : used_) mirrors_->Drop(used.next.value_or(used.mirror), stream_);
  mirrors_->DropIdle(stream_);
}

void Mirrors::OfSlice::Keep() {
  if (mirrors_ == nullptr) return;
  for (const auto& [list, used] : used_) mirrors_->Return(used.next.value_or(used.mirror), number_, stream_);
  is_kept_ = true;
}

Mirrors::OfSlice::Used* Mirrors::OfSlice::Find(uint64_t list) {
  if (const auto found = used_.find(list); found != used_.end()) return &found->second;
  std::optional<Mirror> mirror = mirrors_->Take(list);
  return mirror ? &used_.emplace(list, Used{*mirror, {}}).first->second : nullptr;
}

EditPath Mirrors::OfSlice::PathOf(const RowRequest& request) {
  last_ = nullptr;
  const EditOrigin& origin = request.edit_origin;
  if (mirrors_ == nullptr || origin.list == 0 || request.edits.size() < kLeastEdits) return {};
  Used* const used = Find(origin.list);
  if (used == nullptr) return {};
  const Mirror& mirror = used->mirror;
  const bool is_behind = mirror.count != 0 && mirror.version <= origin.version;
  const uint64_t changes = origin.version - mirror.version + origin.ahead;
  const bool keeps = origin.ahead == 0 && !used->next && (is_behind || mirror.count == 0);
  const bool fits = mirror.capacity >= request.edits.size();
  if (!is_behind || changes > origin.changed.size() || (keeps && !fits && !used->is_read)) {
    return keeps ? Whole(request, used) : EditPath{};
  }
  used->is_read = true;
  EditPath path = {.is_merged = true, .from = mirror.address(mirror.half), .from_count = mirror.count};
  if (changes == 0) return path;
  path.changes = changes_.emplace_back(ChangesOf(request, changes));
  if (keeps && fits) path.to = Write(request, used);
  return path;
}

EditPath Mirrors::OfSlice::Whole(const RowRequest& request, Used* used) {
  if (used->mirror.capacity < request.edits.size()) {
    // What rows before this one read of it is not done yet.
    if (used->is_read || is_full_) return {};
    is_full_ = !mirrors_->Allocate(CapacityFor(request.edits.size()), stream_, &used->mirror);
    if (is_full_) return {};
  }
  return {.is_merged = true, .changes = request.edits, .to = Write(request, used)};
}

DevicePointer Mirrors::OfSlice::Write(const RowRequest& request, Used* used) {
  Mirror next = used->mirror;
  next.half = 1 - next.half;
  next.version = request.edit_origin.version;
  next.count = uint32_t(request.edits.size());
  used->next = next;
  last_ = used;
  return next.address(next.half);
}

void Mirrors::OfSlice::TakeBack() {
  if (last_ != nullptr) last_->next.reset();
  last_ = nullptr;
}

}  // namespace sortition::devices::cuda
