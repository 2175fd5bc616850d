// The way of another process's memory to the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "devices/vulkan/imported_buffer.h"

namespace sortition::devices::vulkan {

// Copies `to.size()` bytes of the buffer, from `offset` on, by the device and memory that both see. Blocks.
// UNAVAILABLE: the context is lost. Thread-safe.
absl::Status Download(const std::shared_ptr<Context>& context, const ImportedBuffer& from, uint64_t offset,
                      std::span<std::byte> to);

}  // namespace sortition::devices::vulkan
