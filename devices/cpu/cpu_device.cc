// Threads and queue of the CPU device.
#include "devices/cpu/cpu_device.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/array.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/cpu/scratch.h"

namespace sortition::devices {
namespace {

// Returns the processor's name as Linux reports it, or "unknown".
std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

const kernels::cpu::Target& Named(std::string_view name) {
  const kernels::cpu::Target* const target = kernels::cpu::FindTarget(name);
  SORTITION_CHECK(target != nullptr);
  return *target;
}

// The memory of one thread that samples rows.
class Worker {
 public:
  void Answer(const kernels::cpu::Target& target, const DeviceRow& row, kernels::RowOutput* output) {
    kernels::RowRequest request = row.request;
    const size_t bytes = size_t{request.live_vocabulary} * kernels::ElementBytes(request.dtype);
    kernels::cpu::RowCopy copy;
    if (row.segments.size() == 1 && !row.may_change) {
      SORTITION_CHECK(row.segments[0].size >= bytes);
      request.logits = row.segments[0].data;
    } else {
      copy = {row.segments, memory_.Reserve(bytes)};
      request.logits = copy.to;
    }
    kernels::cpu::SampleRow(target, request, copy, &scratch_, output);
  }

 private:
  kernels::cpu::Array<std::byte> memory_;  // holds a copy of rows that cannot be read in place
  kernels::cpu::Scratch scratch_;
};

uint64_t NanosecondsSince(std::chrono::steady_clock::time_point start) {
  return uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

std::string CpuTargetNames() { return kernels::cpu::TargetNames(); }
bool IsCpuTarget(std::string_view name) { return kernels::cpu::FindTarget(name) != nullptr; }

CpuDevice::CpuDevice(const CpuDeviceOptions& options) : target_(Named(options.target)) {
  const uint32_t threads =
      options.threads != 0 ? options.threads : std::max(1u, uint32_t(std::thread::hardware_concurrency()));
  description_.name = options.name;
  description_.kind = "cpu";
  description_.hardware = ProcessorName().append(", ").append(target_.name);
  description_.max_batch_rows = options.max_batch_rows;
  description_.features = kernels::kAllFeatures;
  description_.batches_in_flight = threads;  // keeps all threads busy with batches of one row
  threads_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

CpuDevice::~CpuDevice() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    ++changes_;
  }
  changes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CpuDevice::Submit(std::vector<DeviceRow> rows, Done done) {
  SORTITION_CHECK(!rows.empty() && rows.size() <= description_.max_batch_rows);
  auto batch = std::make_shared<Batch>();
  batch->outputs.resize(rows.size());
  batch->unfinished_rows = rows.size();
  batch->rows = std::move(rows);
  batch->done = std::move(done);
  const size_t threads = threads_.size();
  const size_t able = std::min(batch->outputs.size(), threads);  // those that it has rows for
  {
    absl::MutexLock lock(&mutex_);
    SORTITION_CHECK(!stopping_);
    queue_.push_back(std::move(batch));
    ++changes_;
  }
  if (able == threads) return changes_.notify_all();
  for (size_t i = 0; i < able; ++i) changes_.notify_one();
}

void CpuDevice::RunHere(std::span<const DeviceRow* const> rows, Done done) {
  SORTITION_CHECK(!rows.empty() && rows.size() <= description_.max_batch_rows);
  // A thread that runs batches keeps its memory for the next one.
  thread_local Worker worker;
  const auto start = std::chrono::steady_clock::now();
  BatchOutput result;
  result.outputs.resize(rows.size());
  for (size_t row = 0; row < rows.size(); ++row) worker.Answer(target_, *rows[row], &result.outputs[row]);
  result.kernel_nanoseconds = NanosecondsSince(start);
  done(std::move(result));
}

std::shared_ptr<CpuDevice::Batch> CpuDevice::AwaitBatch() {
  for (;;) {
    uint32_t seen;
    {
      absl::MutexLock lock(&mutex_);
      if (!queue_.empty()) return queue_.front();
      if (stopping_) return nullptr;
      seen = changes_;
    }
    changes_.wait(seen);
  }
}

void CpuDevice::RemoveFront() {
  absl::MutexLock lock(&mutex_);
  queue_.pop_front();
}

void CpuDevice::Run() {
  Worker worker;
  while (const std::shared_ptr<Batch> batch = AwaitBatch()) {
    const size_t rows = batch->rows.size();
    for (size_t row; (row = batch->next_row.fetch_add(1, std::memory_order_relaxed)) < rows;) {
      if (row == 0) batch->start = std::chrono::steady_clock::now();
      // It is the front, since the one before it was removed. The other threads take the next one.
      if (row + 1 == rows) RemoveFront();
      worker.Answer(target_, batch->rows[row], &batch->outputs[row]);
      // The last thread sees all others' writes: each decrement releases the writes before it.
      if (batch->unfinished_rows.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish(batch.get());
    }
  }
}

void CpuDevice::Finish(Batch* batch) {
  BatchOutput result;
  result.outputs = std::move(batch->outputs);
  result.kernel_nanoseconds = NanosecondsSince(batch->start);
  std::exchange(batch->done, nullptr)(std::move(result));
}

}  // namespace sortition::devices
