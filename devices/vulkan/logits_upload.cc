// Finds runs of rows that lie together.
#include "devices/vulkan/logits_upload.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "devices/vulkan/vulkan_memory.h"
#include "kernels/check.h"

namespace sortition::devices::vulkan {
namespace {

// Smaller runs are copied: that is faster than the driver's pinning of their pages.
constexpr uint64_t kLeastFetch = 128 << 10;

uint64_t BytesOf(const DeviceRow& row) {
  return uint64_t{row.request.live_vocabulary} * kernels::ElementBytes(row.request.dtype);
}

void CopySegments(const DeviceRow& row, std::byte* to) {
  size_t left = BytesOf(row);
  for (const ByteSegment& segment : row.segments) {
    const size_t part = std::min(segment.size, left);
    if (part != 0) std::memcpy(to, segment.data, part);
    to += part;
    left -= part;
  }
  SORTITION_CHECK(left == 0);
}

// Returns how many of the first rows form a run: each in one piece, in the order of memory, with gaps below a page, so
// that every page of the run has a part of a row.
size_t RunOf(std::span<const DeviceRow> rows, uint64_t page) {
  const auto is_whole = [](const DeviceRow& row) { return row.segments.size() == 1 && row.imported == nullptr; };
  if (!is_whole(rows.front())) return 0;
  size_t count = 1;
  for (; count < rows.size() && is_whole(rows[count]); ++count) {
    const auto end = reinterpret_cast<uintptr_t>(rows[count - 1].segments.front().data) + BytesOf(rows[count - 1]);
    const auto next = reinterpret_cast<uintptr_t>(rows[count].segments.front().data);
    if (next < end || next - end >= page) break;
  }
  return count;
}

}  // namespace

absl::Status LogitsUpload::Reserve(const std::shared_ptr<Context>& context, bool copies, uint64_t bytes) {
  context_ = context;
  return buffer_.Reserve(context.get(), Memory::kHost, copies, bytes);
}

absl::Status LogitsUpload::Put(std::span<const DeviceRow> rows, const kernels::vulkan::Chunk& chunk) {
  std::vector<VkBufferCopy> places;
  for (size_t row = 0; row < rows.size(); ++row) {
    const uint64_t at = uint64_t{16} * chunk.inputs()[row].logits;
    places.push_back({at, at, BytesOf(rows[row])});
  }
  const uint64_t page = context_->hardware().host_import_alignment;
  for (size_t row = 0; row < rows.size();) {
    if (rows[row].imported != nullptr) {
      if (absl::Status status = ImportRow(rows[row], places[row]); !status.ok()) return status;
      ++row;
      continue;
    }
    size_t run = buffer_.is_copied() && page != 0 ? RunOf(rows.subspan(row), page) : 0;
    if (run != 0 && FetchRun(rows.subspan(row, run), &places[row])) {
      row += run;
      continue;
    }
    for (run = std::max<size_t>(run, 1); run > 0; --run, ++row) {
      SORTITION_CHECK(rows[row].memory == kHostMemory);
      CopySegments(rows[row], buffer_.on_host<std::byte>() + places[row].srcOffset);
      if (buffer_.is_copied()) staged_.push_back(places[row]);
    }
  }
  for (uint32_t row = 0; row < chunk.rows(); ++row) {
    const std::span<const std::byte> draft = chunk.DenseDraftOf(row);
    if (!draft.empty()) Stage(draft, uint64_t{16} * chunk.inputs()[row].draft);
  }
  return absl::OkStatus();
}

void LogitsUpload::Stage(std::span<const std::byte> bytes, uint64_t at) {
  std::memcpy(buffer_.on_host<std::byte>() + at, bytes.data(), bytes.size());
  if (buffer_.is_copied()) staged_.push_back({at, at, bytes.size()});
}

bool LogitsUpload::FetchRun(std::span<const DeviceRow> rows, const VkBufferCopy* places) {
  const std::byte* const begin = rows.front().segments.front().data;
  const std::byte* const end = rows.back().segments.front().data + BytesOf(rows.back());
  if (uint64_t(end - begin) < kLeastFetch) return false;
  auto import = HostImport::Make(context_.get(), {begin, end});
  // Some drivers take only some kinds of memory; only a try can tell.
  if (!import.ok()) return false;
  Fetch& fetch = fetched_.emplace_back();
  fetch.from = *std::move(import);
  for (size_t row = 0; row < rows.size(); ++row) {
    fetch.rows.push_back(
        {fetch.from->OffsetOf(rows[row].segments.front().data), places[row].dstOffset, places[row].size});
  }
  return true;
}

absl::Status LogitsUpload::ImportRow(const DeviceRow& row, const VkBufferCopy& place) {
  const auto* const memory = dynamic_cast<const VulkanMemory*>(row.imported);
  SORTITION_CHECK(memory != nullptr && row.memory == memory->memory() && row.segments.size() == 1);
  const uint64_t from = memory->OffsetOf(row.segments.front().data);
  SORTITION_CHECK(place.size <= row.segments.front().size && from <= memory->bytes().size() &&
                  place.size <= memory->bytes().size() - from);
  auto buffer = memory->In(context_);
  if (!buffer.ok()) return buffer.status();
  if (imported_.empty() || imported_.back().from != *buffer) imported_.push_back({*std::move(buffer), {}});
  imported_.back().rows.push_back({from, place.dstOffset, place.size});
  return absl::OkStatus();
}

void LogitsUpload::Record(const Api& api, VkCommandBuffer commands) const {
  if (!staged_.empty()) {
    api.CmdCopyBuffer(commands, buffer_.on_host_handle(), buffer_.on_device(), uint32_t(staged_.size()),
                      staged_.data());
  }
  for (const Fetch& fetch : fetched_) {
    api.CmdCopyBuffer(commands, fetch.from->handle(), buffer_.on_device(), uint32_t(fetch.rows.size()),
                      fetch.rows.data());
  }
  for (const Import& import : imported_) import.from->RecordCopies(commands, import.rows, buffer_.on_device());
}

void LogitsUpload::Release() {
  staged_.clear();
  fetched_.clear();
  imported_.clear();
}

}  // namespace sortition::devices::vulkan
