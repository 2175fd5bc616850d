// A producer of compact rows behind a lock, made when it is first needed.
#include "client/cpp/cuda/cuda_statements.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/sortition/cuda_producer.h"
#include "devices/cuda/context.h"

namespace sortition::client {
namespace {

using devices::cuda::Context;
using devices::cuda::CurrentContext;
using Stated = std::vector<std::optional<kernels::StatedRow>>;

// The most rows that are stated at once.
constexpr uint32_t kRowsAtOnce = 64;

// Thread-safe: rows are stated by one thread at a time.
class CudaStatements {
 public:
  CudaStatements(const CudaRows& rows, const kernels::cuda::Images& images) : rows_(rows), images_(images) {}
  ~CudaStatements() {
    absl::MutexLock lock(&mutex_);
    producer_ = nullptr;
    if (stream_ == nullptr) return;
    const CurrentContext current(*context_);
    context_->api().StreamDestroy(stream_);
  }

  absl::StatusOr<Stated> State(const RowsToState& rows) {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Prepare(rows); !status.ok()) return status;
    Stated all;
    const std::span<const kernels::RowParameters> parameters = rows.parameters;
    while (all.size() < parameters.size()) {
      const size_t count = std::min<size_t>(kRowsAtOnce, parameters.size() - all.size());
      const std::byte* const first = static_cast<const std::byte*>(rows_.data()) + rows.offset;
      const CudaLogits logits = {.logits = first + rows.row_bytes * all.size(),
                                 .row_bytes = rows.row_bytes,
                                 .dtype = rows.dtype,
                                 .rows = static_cast<uint32_t>(count),
                                 .vocabulary = rows.vocabulary};
      if (absl::Status status = Append(logits, parameters.subspan(all.size(), count), rows, &all); !status.ok()) {
        return status;
      }
    }
    return all;
  }

 private:
  // Makes the context and producers that such rows still lack.
  absl::Status Prepare(const RowsToState& rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (context_ == nullptr) {
      auto context = Context::Create(rows_.api(), rows_.hardware(), images_);
      if (!context.ok()) return context.status();
      const CurrentContext current(**context);
      if (!current.status().ok()) return current.status();
      SORTITION_CUDA_RETURN_IF_ERROR((*context)->api(), StreamCreate(&stream_, devices::cuda::kStreamNonBlocking));
      context_ = *std::move(context);
    }
    if (producer_ != nullptr && rows.vocabulary <= limits_.vocabulary && rows.count == limits_.first) {
      return absl::OkStatus();
    }
    producer_ = nullptr;  // frees its memory before the next one allocates
    limits_ = {.rows = kRowsAtOnce, .vocabulary = rows.vocabulary, .first = rows.count};
    auto producer = CudaProducer::Memory::Create(context_, limits_);
    if (!producer.ok()) return producer.status();
    producer_ = *std::move(producer);
    return absl::OkStatus();
  }

  absl::Status Append(const CudaLogits& logits, std::span<const kernels::RowParameters> parameters,
                      const RowsToState& rows, Stated* all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status status = producer_->State(stream_, logits, parameters, rows.sums); !status.ok()) return status;
    {
      const CurrentContext current(*context_);
      if (!current.status().ok()) return current.status();
      SORTITION_CUDA_RETURN_IF_ERROR(context_->api(), StreamSynchronize(stream_));
    }
    for (uint32_t row = 0; row < logits.rows; ++row) {
      kernels::StatedRow stated;
      bool fails = false;
      if (absl::Status status = producer_->Take(row, &stated, &fails); !status.ok()) return status;
      fails ? all->emplace_back() : all->emplace_back(std::move(stated));
    }
    return absl::OkStatus();
  }

  const CudaRows& rows_;
  const kernels::cuda::Images images_;
  absl::Mutex mutex_;
  std::shared_ptr<Context> context_ ABSL_GUARDED_BY(mutex_);
  devices::cuda::StreamHandle stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  CudaProducerLimits limits_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<CudaProducer::Memory> producer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

DeviceRows WithStatements(const CudaRows& rows, const kernels::cuda::Images& images) {
  DeviceRows with = rows.rows();
  with.state = [statements = std::make_shared<CudaStatements>(rows, images)](const RowsToState& wanted) {
    return statements->State(wanted);
  };
  return with;
}

}  // namespace sortition::client
