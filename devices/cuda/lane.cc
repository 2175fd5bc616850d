// A batch on the device: upload, kernels, download.
#include "devices/cuda/lane.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/law/race_by_list.h"

namespace sortition::devices::cuda {

using kernels::cuda::Chunk;
using kernels::cuda::LogitsPath;

namespace {

void CopySegments(const DeviceRow& row, std::byte* to, size_t bytes) {
  for (const ByteSegment& segment : row.segments) {
    const size_t part = std::min(segment.size, bytes);
    if (part != 0) std::memcpy(to, segment.data, part);
    to += part;
    bytes -= part;
  }
  SORTITION_CHECK(bytes == 0);
}

// The kernels read a logit more than once and assume that it does not change.
LogitsPath PathOf(const DeviceRow& row) {
  if (row.memory == kHostMemory) return LogitsPath::kUpload;
  const auto address = reinterpret_cast<uintptr_t>(row.segments.front().data);
  const bool is_aligned = address % kernels::cuda::kLogitsAlignment == 0;
  return is_aligned && !row.may_change ? LogitsPath::kNone : LogitsPath::kCopy;
}

// Adds a line to the copy if all lines stay equally long and equally spaced, as a step's lines mostly are. Returns
// false otherwise.
bool AddLine(DevicePointer from, DevicePointer to, uint64_t bytes, Copy2D* lines) {
  if (lines->height == 0) {
    *lines = {.from = {.device = from, .pitch = bytes}, .to = {.device = to, .pitch = bytes}, .width_bytes = bytes};
  } else if (lines->height == 1) {
    const uint64_t from_pitch = from - lines->from.device;
    const uint64_t to_pitch = to - lines->to.device;
    // The pitch is unsigned: a line before the first one gives a huge value.
    if (bytes != lines->width_bytes || from_pitch < bytes || from_pitch > kMostPitch || to_pitch > kMostPitch) {
      return false;
    }
    lines->from.pitch = from_pitch;
    lines->to.pitch = to_pitch;
  } else if (bytes != lines->width_bytes || from != lines->from.device + lines->from.pitch * lines->height ||
             to != lines->to.device + lines->to.pitch * lines->height) {
    return false;
  }
  ++lines->height;
  return true;
}

absl::Status CopyLines(const Api& api, const Copy2D& lines, StreamHandle stream) {
  const size_t bytes = lines.width_bytes;
  if (lines.from.pitch == bytes && lines.to.pitch == bytes) {
    SORTITION_CUDA_RETURN_IF_ERROR(api,
                                   MemcpyDtoDAsync(lines.to.device, lines.from.device, bytes * lines.height, stream));
  } else {
    SORTITION_CUDA_RETURN_IF_ERROR(api, Memcpy2DAsync(&lines, stream));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lane>> Lane::Create(std::shared_ptr<Context> context, uint64_t most_bytes) {
  const CurrentContext current(*context);
  if (!current.status().ok()) return current.status();
  std::unique_ptr<Lane> lane(new Lane(std::move(context), most_bytes));
  if (absl::Status status = lane->Open(); !status.ok()) return status;
  return lane;
}

absl::Status Lane::Open() {
  const Api& api = context_->api();
  SORTITION_CUDA_RETURN_IF_ERROR(api, StreamCreate(&stream_, kStreamNonBlocking));
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventCreate(&start_, kEventDefault));
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventCreate(&end_, kEventDefault));
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventCreate(&done_, kEventBlockingSync));
  upload_ = std::make_unique<PooledMemory>(context_, stream_);
  work_ = std::make_unique<PooledMemory>(context_, stream_);
  download_ = std::make_unique<PooledMemory>(context_, stream_);
  host_upload_ = std::make_unique<PinnedMemory>(context_);
  host_download_ = std::make_unique<PinnedMemory>(context_);
  return absl::OkStatus();
}

Lane::~Lane() {
  const CurrentContext current(*context_);
  const Api& api = context_->api();
  upload_.reset();
  work_.reset();
  download_.reset();
  host_upload_.reset();
  host_download_.reset();
  for (const EventHandle event : {start_, end_, done_}) {
    if (event != nullptr) api.EventDestroy(event);
  }
  if (stream_ != nullptr) api.StreamDestroy(stream_);
}

absl::Status Lane::Run(std::span<const DeviceRow> rows, std::vector<kernels::RowOutput>* outputs,
                       uint64_t* nanoseconds) {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  const law::RaceByList by_list(rows);
  rows = by_list.rows();
  const size_t before = outputs->size();
  uint64_t most_bytes = most_bytes_;
  while (!rows.empty()) {
    size_t taken = 0;
    const absl::Status status = RunChunk(rows, most_bytes, &taken, outputs, nanoseconds);
    if (absl::IsResourceExhausted(status) && taken > 1) {
      most_bytes /= 2;
      continue;
    }
    if (!status.ok()) return status;
    rows = rows.subspan(taken);
  }
  by_list.Finish(std::span(*outputs).subspan(before));
  return absl::OkStatus();
}

absl::Status Lane::WaitFor(StreamHandle stream) {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  const Api& api = context_->api();
  int capture = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, StreamIsCapturing(stream, &capture));
  if (capture != 0) return absl::FailedPreconditionError("stream: captures a graph");
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventRecord(start_, stream));
  SORTITION_CUDA_RETURN_IF_ERROR(api, StreamWaitEvent(stream_, start_, 0));
  return absl::OkStatus();
}

absl::Status Lane::RunChunk(std::span<const DeviceRow> rows, uint64_t most_bytes, size_t* taken,
                            std::vector<kernels::RowOutput>* outputs, uint64_t* nanoseconds) {
  // For rows that are copied to the device, the request's own pointer only has to be non-null.
  std::vector<kernels::RowRequest> requests;
  requests.reserve(rows.size());
  Chunk chunk;
  for (const DeviceRow& row : rows) {
    requests.push_back(row.request);
    requests.back().logits = row.segments.front().data;
    // The first row is always taken, however much memory it needs.
    if (!chunk.Add(requests.back(), chunk.rows() == 0 ? ~uint64_t{0} : most_bytes, PathOf(row))) break;
  }
  *taken = chunk.rows();
  if (absl::Status status = Reserve(chunk); !status.ok()) return status;
  for (uint32_t row = 0; row < chunk.rows(); ++row) {
    size_t bytes = 0;
    std::byte* const to = chunk.LogitsOf(row, host_upload_->data(), &bytes);
    if (rows[row].memory == kHostMemory) CopySegments(rows[row], to, bytes);
  }
  chunk.WriteInputs(host_upload_->data(), upload_->address(), work_->address(), download_->address());
  if (absl::Status status = Submit(chunk, rows); !status.ok()) return status;

  const Api& api = context_->api();
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventSynchronize(done_));
  float milliseconds = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventElapsedTime(&milliseconds, start_, end_));
  *nanoseconds += uint64_t(double(milliseconds) * 1e6);
  if (absl::Status status = DownloadKept(chunk); !status.ok()) return status;
  for (uint32_t row = 0; row < chunk.rows(); ++row) outputs->push_back(chunk.ReadOutput(row, host_download_->data()));
  return absl::OkStatus();
}

absl::Status Lane::Reserve(const Chunk& chunk) {
  if (absl::Status status = host_upload_->Reserve(chunk.upload_bytes()); !status.ok()) return status;
  if (absl::Status status = host_download_->Reserve(chunk.download_bytes()); !status.ok()) return status;
  if (absl::Status status = upload_->Reserve(chunk.upload_bytes()); !status.ok()) return status;
  if (absl::Status status = work_->Reserve(chunk.work_bytes()); !status.ok()) return status;
  return download_->Reserve(chunk.download_bytes());
}

absl::Status Lane::Submit(const Chunk& chunk, std::span<const DeviceRow> rows) {
  const Api& api = context_->api();
  const uint32_t multiprocessors = context_->hardware().multiprocessors;
  SORTITION_CUDA_RETURN_IF_ERROR(
      api, MemcpyHtoDAsync(upload_->address(), host_upload_->data(), chunk.upload_bytes(), stream_));
  if (absl::Status status = Copy(chunk, rows); !status.ok()) return status;
  SORTITION_CUDA_RETURN_IF_ERROR(api, MemsetD8Async(work_->address(), 0, chunk.states_bytes(), stream_));
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventRecord(start_, stream_));
  const kernels::cuda::BatchView view =
      chunk.MakeView(upload_->address(), work_->address(), download_->address(), multiprocessors);
  absl::Status status =
      context_->Launch(view, chunk.rows(), chunk.geometry(multiprocessors).sections, chunk.needed(), stream_);
  if (!status.ok()) return status;
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventRecord(end_, stream_));
  SORTITION_CUDA_RETURN_IF_ERROR(
      api, MemcpyDtoHAsync(host_download_->data(), download_->address(), chunk.first_download_bytes(), stream_));
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventRecord(done_, stream_));
  return absl::OkStatus();
}

absl::Status Lane::Copy(const Chunk& chunk, std::span<const DeviceRow> rows) {
  const Api& api = context_->api();
  Copy2D lines;
  for (uint32_t row = 0; row < chunk.rows(); ++row) {
    const Chunk::Range copy = chunk.CopyOf(row);
    if (copy.bytes == 0) continue;
    const auto from = reinterpret_cast<DevicePointer>(rows[row].segments.front().data);
    const DevicePointer to = work_->address() + copy.offset;
    if (AddLine(from, to, copy.bytes, &lines)) continue;
    if (absl::Status status = CopyLines(api, lines, stream_); !status.ok()) return status;
    lines = {};
    AddLine(from, to, copy.bytes, &lines);
  }
  return lines.height == 0 ? absl::OkStatus() : CopyLines(api, lines, stream_);
}

absl::Status Lane::DownloadKept(const Chunk& chunk) {
  const Api& api = context_->api();
  bool has_any = false;
  for (uint32_t row = 0; row < chunk.rows(); ++row) {
    const auto [offset, bytes] = chunk.KeptOf(row, host_download_->data());
    if (bytes == 0) continue;
    SORTITION_CUDA_RETURN_IF_ERROR(
        api, MemcpyDtoHAsync(host_download_->data() + offset, download_->address() + offset, bytes, stream_));
    has_any = true;
  }
  if (!has_any) return absl::OkStatus();
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventRecord(done_, stream_));
  SORTITION_CUDA_RETURN_IF_ERROR(api, EventSynchronize(done_));
  return absl::OkStatus();
}

}  // namespace sortition::devices::cuda
