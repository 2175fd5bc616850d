// A logical device with all that its batches in flight share: queue, pipelines, memory types.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "devices/vulkan/instance.h"
#include "kernels/vulkan/shaders.h"

namespace sortition::devices::vulkan {

// Workgroup sizes in threads; powers of two.
struct Workgroups {
  uint32_t section = 0;   // for shaders that split a row among workgroups
  uint32_t row = 0;       // for shaders that give a row to one workgroup, ...
  uint32_t long_row = 0;  // ... and of these for rows too long for that many threads (kernels::vulkan::MaxVocabulary)

  // Sizes that suit the hardware.
  static Workgroups For(const Hardware& hardware);
  // Threads of a shader's workgroups if the longest row has this many tokens.
  uint32_t ThreadsOf(kernels::vulkan::Shader shader, uint32_t vocabulary) const;
};

// A shader with the constants that it is compiled for.
struct PipelineForm {
  kernels::vulkan::Shader shader = kernels::vulkan::Shader::kRead;
  bool chained = false;  // for rows with a sampler chain; of shaders that take whole rows
  uint32_t threads = 0;  // of a workgroup
  auto operator<=>(const PipelineForm&) const = default;
};

struct ContextOptions {
  Workgroups workgroups;
  kernels::vulkan::Variant variant;   // must be offered by the hardware
  std::string pipeline_cache_folder;  // where compiled shaders are kept; empty: nowhere
};

// Thread-safe. Destroyed when nothing made from it is left.
class Context {
 public:
  // Blocks for as long as the driver takes to compile the shaders for rows of common length.
  static absl::StatusOr<std::shared_ptr<Context>> Create(std::shared_ptr<Instance> instance, const Hardware& hardware,
                                                         ContextOptions options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Api& api() const { return instance_->api(); }
  const Hardware& hardware() const { return hardware_; }
  const Workgroups& workgroups() const { return options_.workgroups; }
  VkDevice device() const { return device_; }
  VkDescriptorSetLayout set_layout() const { return set_layout_; }
  VkPipelineLayout pipeline_layout() const { return pipeline_layout_; }
  // Returns the pipeline. The first call blocks for as long as the driver takes to compile it.
  absl::StatusOr<VkPipeline> Pipeline(const PipelineForm& form) ABSL_LOCKS_EXCLUDED(mutex_);

  // Submits the commands; the fence is signalled when the device has run them. UNAVAILABLE: the device is lost.
  absl::Status Submit(VkCommandBuffer commands, VkFence fence) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reason why the compiled shaders are not on disk; OK if they are, or need not be.
  absl::Status cache_status() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return cache_status_;
  }

  // Marks the device as lost for good; a new context may find it again.
  void SetLost() { lost_.store(true); }
  bool lost() const { return lost_.load(); }

 private:
  Context(std::shared_ptr<Instance> instance, const Hardware& hardware, ContextOptions options)
      : instance_(std::move(instance)), hardware_(hardware), options_(std::move(options)) {}
  absl::Status Open();
  absl::Status MakeLayouts();
  absl::Status OpenCache();
  absl::Status SaveCache() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<VkPipeline> MakePipeline(const PipelineForm& form);

  const std::shared_ptr<Instance> instance_;
  const Hardware hardware_;
  const ContextOptions options_;
  VkDevice device_ = VK_NULL_HANDLE;
  VkDescriptorSetLayout set_layout_ = VK_NULL_HANDLE;
  VkPipelineLayout pipeline_layout_ = VK_NULL_HANDLE;
  VkPipelineCache cache_ = VK_NULL_HANDLE;
  std::atomic<bool> lost_ = false;
  mutable absl::Mutex mutex_;
  std::map<PipelineForm, VkPipeline> pipelines_ ABSL_GUARDED_BY(mutex_);
  bool keeps_cache_ ABSL_GUARDED_BY(mutex_) = false;  // saves the cache with each new pipeline
  size_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // on disk
  absl::Status cache_status_ ABSL_GUARDED_BY(mutex_);
  VkQueue queue_ ABSL_GUARDED_BY(mutex_) = VK_NULL_HANDLE;
};

}  // namespace sortition::devices::vulkan
