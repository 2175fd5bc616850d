// Copies another process's device memory to the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "devices/vulkan/context_source.h"
#include "devices/vulkan/imported_buffer.h"

namespace sortition::devices::vulkan {

// Copies `to.size()` bytes of the buffer from `offset`, with the device, through memory that both see. Blocks.
// UNAVAILABLE: the context, which belongs to `contexts`, is lost. Thread-safe.
absl::Status Download(ContextSource* contexts, const std::shared_ptr<Context>& context,
                      std::shared_ptr<const ImportedBuffer> from, uint64_t offset, std::span<std::byte> to);

}  // namespace sortition::devices::vulkan
