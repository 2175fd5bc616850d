// Checks the handle, maps the memory and keeps it.
#include "devices/cuda/imported_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::devices::cuda {
namespace {

class Imported final : public ImportedMemory {
 public:
  Imported(std::shared_ptr<Context> context, std::unique_ptr<Mapping> mapping, uint64_t bytes, uint32_t memory)
      : ImportedMemory({reinterpret_cast<const std::byte*>(mapping->address()), bytes}, memory),
        context_(std::move(context)),
        mapping_(std::move(mapping)) {}

  absl::Status Read(uint64_t offset, std::span<std::byte> to) const override {
    SORTITION_CHECK(offset <= bytes().size() && to.size() <= bytes().size() - offset);
    return ReadMemory(context_->api(), context_->handle(), mapping_->address() + offset, to);
  }

 private:
  const std::shared_ptr<Context> context_;  // outlives the mapping
  const std::unique_ptr<Mapping> mapping_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ImportedMemory>> ImportMemory(std::shared_ptr<Context> context,
                                                                   const MemoryHandle& handle, uint32_t memory) {
  const Api& api = context->api();
  const Hardware& hardware = context->hardware();
  if (handle.kind != MemoryKind::kCuda)
    return absl::UnimplementedError("kind: a CUDA device takes CUDA's memory alone");
  const CurrentContext current(*context);
  if (!current.status().ok()) return current.status();
  const absl::StatusOr<uint64_t> granularity = Granularity(api, hardware);
  if (!granularity.ok()) return granularity.status();
  if (handle.bytes == 0 || handle.bytes > hardware.memory_bytes || handle.bytes % *granularity != 0) {
    return absl::InvalidArgumentError(absl::StrCat("bytes: ", handle.bytes, " are not a multiple of ", *granularity,
                                                   " up to ", hardware.memory_bytes));
  }
  const auto allocation = Allocation::Import(api, hardware, handle.descriptor);
  if (!allocation.ok()) return allocation.status();
  auto mapping = Mapping::Create(api, hardware, *allocation, handle.bytes, AccessFlags::kRead);
  if (!mapping.ok()) return mapping.status();
  return std::make_shared<const Imported>(std::move(context), *std::move(mapping), handle.bytes, memory);
}

absl::Status ReadMemory(const Api& api, ContextHandle context, DevicePointer from, std::span<std::byte> to) {
  const CurrentContext current(api, context);
  if (!current.status().ok() || to.empty()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(api, MemcpyDtoH(to.data(), from, to.size()));
  return absl::OkStatus();
}

}  // namespace sortition::devices::cuda
