// Creates a logical device and its pipelines.
#include "devices/vulkan/context.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "devices/vulkan/pipeline_cache_file.h"

namespace sortition::devices::vulkan {

using kernels::vulkan::Shader;

// Drivers that compute on the CPU run the threads of a workgroup in turn, once for each barrier; fewer threads cost
// less.
constexpr uint32_t kSectionThreadsOfProcessor = 32;
constexpr uint32_t kRowThreadsOfProcessor = 32;

Workgroups Workgroups::For(const Hardware& hardware) {
  const VkPhysicalDeviceLimits& limits = hardware.limits;
  const uint32_t threads =
      std::bit_floor(std::min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]));
  const auto fitting = [&](Shader shader, uint32_t count) {
    while (kernels::vulkan::SharedBytes(shader, count) > limits.maxComputeSharedMemorySize) count /= 2;
    return count;
  };
  Workgroups workgroups;
  workgroups.section =
      fitting(Shader::kRead, std::min(threads, hardware.is_processor ? kSectionThreadsOfProcessor : 256u));
  workgroups.long_row = fitting(Shader::kSample, std::min(threads, 1024u));
  workgroups.row = hardware.is_processor ? std::min(workgroups.long_row, kRowThreadsOfProcessor) : workgroups.long_row;
  return workgroups;
}

uint32_t Workgroups::ThreadsOf(Shader shader, uint32_t vocabulary) const {
  if (!kernels::vulkan::TakesWholeRows(shader)) return section;
  if (shader == Shader::kChain) return 1;
  const uint32_t tokens = kernels::vulkan::TokensOfThread(shader);
  uint32_t threads = row;
  while (threads < long_row && uint64_t{threads} * tokens < vocabulary) threads *= 4;
  return std::min(threads, long_row);
}

absl::StatusOr<std::shared_ptr<Context>> Context::Create(std::shared_ptr<Instance> instance, const Hardware& hardware,
                                                         ContextOptions options) {
  std::shared_ptr<Context> context(new Context(std::move(instance), hardware, std::move(options)));
  if (absl::Status status = context->Open(); !status.ok()) return status;
  return context;
}

Context::~Context() {
  if (device_ == VK_NULL_HANDLE) return;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, pipeline] : pipelines_) api().DestroyPipeline(device_, pipeline, nullptr);
  }
  api().DestroyPipelineCache(device_, cache_, nullptr);
  api().DestroyPipelineLayout(device_, pipeline_layout_, nullptr);
  api().DestroyDescriptorSetLayout(device_, set_layout_, nullptr);
  api().DestroyDevice(device_, nullptr);
}

absl::Status Context::Open() {
  const float priority = 1;
  VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queue.queueFamilyIndex = hardware_.queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkPhysicalDeviceFeatures features = {};
  features.shaderInt64 = options_.variant.int64 ? VK_TRUE : VK_FALSE;
  VkDeviceCreateInfo create = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  create.pEnabledFeatures = &features;
  create.queueCreateInfoCount = 1;
  create.pQueueCreateInfos = &queue;
  std::vector<const char*> extensions;
  if (hardware_.host_import_alignment != 0) extensions.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  if (hardware_.imports_memory) extensions.push_back(VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
  create.enabledExtensionCount = uint32_t(extensions.size());
  create.ppEnabledExtensionNames = extensions.data();
  SORTITION_VULKAN_RETURN_IF_ERROR(api().CreateDevice(hardware_.handle, &create, nullptr, &device_));
  {
    absl::MutexLock lock(&mutex_);
    api().GetDeviceQueue(device_, hardware_.queue_family, 0, &queue_);
  }
  if (absl::Status status = MakeLayouts(); !status.ok()) return status;
  if (absl::Status status = OpenCache(); !status.ok()) return status;
  for (int shader = 0; shader < kernels::vulkan::kShaders; ++shader) {
    if (!kernels::vulkan::IsCommon(Shader(shader))) continue;
    const auto pipeline = Pipeline({Shader(shader), false, workgroups().ThreadsOf(Shader(shader), 1)});
    if (!pipeline.ok()) return pipeline.status();
  }
  absl::MutexLock lock(&mutex_);
  cache_status_ = SaveCache();
  keeps_cache_ = true;
  return absl::OkStatus();
}

absl::Status Context::OpenCache() {
  std::vector<std::byte> data;
  if (!options_.pipeline_cache_folder.empty()) {
    data = LoadPipelineCache(PipelineCachePath(options_.pipeline_cache_folder, hardware_), hardware_);
  }
  {
    absl::MutexLock lock(&mutex_);
    cached_bytes_ = data.size();
  }
  VkPipelineCacheCreateInfo cache = {VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  cache.initialDataSize = data.size();
  cache.pInitialData = data.data();
  SORTITION_VULKAN_RETURN_IF_ERROR(api().CreatePipelineCache(device_, &cache, nullptr, &cache_));
  return absl::OkStatus();
}

absl::Status Context::SaveCache() {
  if (options_.pipeline_cache_folder.empty()) return absl::OkStatus();
  size_t bytes = 0;
  SORTITION_VULKAN_RETURN_IF_ERROR(api().GetPipelineCacheData(device_, cache_, &bytes, nullptr));
  // Pipeline caches only grow: one of the same size is the one that was read.
  if (bytes == cached_bytes_) return absl::OkStatus();
  std::vector<std::byte> data(bytes);
  SORTITION_VULKAN_RETURN_IF_ERROR(api().GetPipelineCacheData(device_, cache_, &bytes, data.data()));
  // The cache of lavapipe of Mesa 26.2 ends within its header.
  if (bytes < sizeof(VkPipelineCacheHeaderVersionOne)) return absl::OkStatus();
  data.resize(bytes);
  cached_bytes_ = bytes;
  return SavePipelineCache(PipelineCachePath(options_.pipeline_cache_folder, hardware_), data);
}

absl::Status Context::MakeLayouts() {
  VkDescriptorSetLayoutBinding bindings[kernels::vulkan::kBindings] = {};
  for (uint32_t binding = 0; binding < kernels::vulkan::kBindings; ++binding) {
    bindings[binding].binding = binding;
    bindings[binding].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    bindings[binding].descriptorCount = 1;
    bindings[binding].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
  }
  VkDescriptorSetLayoutCreateInfo set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
  set.bindingCount = kernels::vulkan::kBindings;
  set.pBindings = bindings;
  SORTITION_VULKAN_RETURN_IF_ERROR(api().CreateDescriptorSetLayout(device_, &set, nullptr, &set_layout_));
  VkPipelineLayoutCreateInfo layout = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  layout.setLayoutCount = 1;
  layout.pSetLayouts = &set_layout_;
  SORTITION_VULKAN_RETURN_IF_ERROR(api().CreatePipelineLayout(device_, &layout, nullptr, &pipeline_layout_));
  return absl::OkStatus();
}

absl::StatusOr<VkPipeline> Context::Pipeline(const PipelineForm& form) {
  absl::MutexLock lock(&mutex_);
  VkPipeline& pipeline = pipelines_[form];
  if (pipeline == VK_NULL_HANDLE) {
    auto made = MakePipeline(form);
    if (!made.ok()) return made.status();
    pipeline = *made;
    if (keeps_cache_) cache_status_ = SaveCache();
  }
  return pipeline;
}

absl::StatusOr<VkPipeline> Context::MakePipeline(const PipelineForm& form) {
  const std::span<const uint32_t> words = kernels::vulkan::SpirV(form.shader, options_.variant);
  VkShaderModuleCreateInfo code = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  code.codeSize = words.size_bytes();
  code.pCode = words.data();
  VkShaderModule module;
  SORTITION_VULKAN_RETURN_IF_ERROR(api().CreateShaderModule(device_, &code, nullptr, &module));
  const uint32_t values[] = {form.threads, form.chained ? VK_TRUE : VK_FALSE};
  const VkSpecializationMapEntry entries[] = {{0, 0, 4}, {1, 4, 4}};
  const VkSpecializationInfo constants = {2, entries, sizeof(values), values};
  VkComputePipelineCreateInfo create = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  create.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO};
  create.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  create.stage.module = module;
  create.stage.pName = "main";
  create.stage.pSpecializationInfo = &constants;
  create.layout = pipeline_layout_;
  VkPipeline pipeline = VK_NULL_HANDLE;
  const VkResult result = api().CreateComputePipelines(device_, cache_, 1, &create, nullptr, &pipeline);
  api().DestroyShaderModule(device_, module, nullptr);
  SORTITION_VULKAN_RETURN_IF_ERROR(result);
  return pipeline;
}

absl::Status Context::Submit(VkCommandBuffer commands, VkFence fence) {
  VkSubmitInfo submit = {VK_STRUCTURE_TYPE_SUBMIT_INFO};
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &commands;
  absl::MutexLock lock(&mutex_);
  return ToStatus(api().QueueSubmit(queue_, 1, &submit, fence), "vkQueueSubmit");
}

}  // namespace sortition::devices::vulkan
