// The shader's pipeline, and one submission a run.
#include "tests/bench/vulkan/max_pass.h"

#include <chrono>
#include <cstring>

#include "kernels/check.h"

namespace sortition::bench {
namespace {

using devices::vulkan::Api;
using devices::vulkan::Memory;

constexpr uint32_t kCode[] = {
#include "max.spv.inc"
};
constexpr uint32_t kQuadsAThread = 16;

void Check(VkResult result) { SORTITION_CHECK(result == VK_SUCCESS); }

}  // namespace

MaxPass::MaxPass(std::shared_ptr<devices::vulkan::Context> context, const Logits& logits)
    : context_(std::move(context)),
      rows_(uint32_t(logits.count())),
      quads_a_row_(uint32_t(logits.row_bytes() / sizeof(uint32_t) / 4)),
      commands_(context_.get()) {
  const Api& api = context_->api();
  const size_t row_bytes = size_t{quads_a_row_} * 16;
  SORTITION_CHECK(logits_.Reserve(context_.get(), Memory::kHost, false, rows_ * row_bytes).ok());
  SORTITION_CHECK(maxima_.Reserve(context_.get(), Memory::kDevice, rows_ * sizeof(int32_t)).ok());
  for (uint32_t row = 0; row < rows_; ++row) {
    std::memcpy(logits_.on_host<std::byte>() + row * row_bytes, logits.row(row), row_bytes);
  }
  MakePipeline();
  Bind();
  SORTITION_CHECK(commands_.Open().ok());
  if (context_->hardware().has_timestamps) {
    VkQueryPoolCreateInfo queries = {VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    queries.queryType = VK_QUERY_TYPE_TIMESTAMP;
    queries.queryCount = 2;
    Check(api.CreateQueryPool(context_->device(), &queries, nullptr, &timestamps_));
  }
}

MaxPass::~MaxPass() {
  const Api& api = context_->api();
  const VkDevice device = context_->device();
  api.DestroyQueryPool(device, timestamps_, nullptr);
  api.DestroyDescriptorPool(device, descriptor_pool_, nullptr);
  api.DestroyPipeline(device, pipeline_, nullptr);
  api.DestroyPipelineLayout(device, layout_, nullptr);
}

void MaxPass::MakePipeline() {
  const Api& api = context_->api();
  const VkDescriptorSetLayout set = context_->set_layout();
  const VkPushConstantRange constants = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(quads_a_row_)};
  VkPipelineLayoutCreateInfo layout = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  layout.setLayoutCount = 1;
  layout.pSetLayouts = &set;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &constants;
  Check(api.CreatePipelineLayout(context_->device(), &layout, nullptr, &layout_));
  VkShaderModuleCreateInfo code = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  code.codeSize = sizeof(kCode);
  code.pCode = kCode;
  VkShaderModule module;
  Check(api.CreateShaderModule(context_->device(), &code, nullptr, &module));
  const uint32_t threads = context_->workgroups().section;
  const VkSpecializationMapEntry entry = {0, 0, sizeof(threads)};
  const VkSpecializationInfo specialisation = {1, &entry, sizeof(threads), &threads};
  VkComputePipelineCreateInfo create = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  create.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO};
  create.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  create.stage.module = module;
  create.stage.pName = "main";
  create.stage.pSpecializationInfo = &specialisation;
  create.layout = layout_;
  Check(api.CreateComputePipelines(context_->device(), VK_NULL_HANDLE, 1, &create, nullptr, &pipeline_));
  api.DestroyShaderModule(context_->device(), module, nullptr);
}

void MaxPass::Bind() {
  const Api& api = context_->api();
  const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kernels::vulkan::kBindings};
  VkDescriptorPoolCreateInfo pool = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
  pool.maxSets = 1;
  pool.poolSizeCount = 1;
  pool.pPoolSizes = &size;
  Check(api.CreateDescriptorPool(context_->device(), &pool, nullptr, &descriptor_pool_));
  const VkDescriptorSetLayout layout = context_->set_layout();
  VkDescriptorSetAllocateInfo set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
  set.descriptorPool = descriptor_pool_;
  set.descriptorSetCount = 1;
  set.pSetLayouts = &layout;
  Check(api.AllocateDescriptorSets(context_->device(), &set, &descriptors_));
  const VkDescriptorBufferInfo buffers[] = {{logits_.on_device(), 0, VK_WHOLE_SIZE},
                                            {maxima_.handle(), 0, VK_WHOLE_SIZE}};
  for (uint32_t binding = 0; binding < 2; ++binding) {
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = descriptors_;
    write.dstBinding = binding;
    write.descriptorCount = 1;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = &buffers[binding];
    api.UpdateDescriptorSets(context_->device(), 1, &write, 0, nullptr);
  }
}

void MaxPass::Record() {
  const Api& api = context_->api();
  const uint32_t threads = context_->workgroups().section;
  SORTITION_CHECK(commands_.Begin().ok());
  const VkCommandBuffer commands = commands_.handle();
  if (timestamps_ != VK_NULL_HANDLE) api.CmdResetQueryPool(commands, timestamps_, 0, 2);
  logits_.RecordUpload(api, commands, uint64_t{rows_} * quads_a_row_ * 16);
  api.CmdFillBuffer(commands, maxima_.handle(), 0, VK_WHOLE_SIZE, 0x80000000u);
  VkMemoryBarrier barrier = {VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
  api.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier,
                         0, nullptr, 0, nullptr);
  if (timestamps_ != VK_NULL_HANDLE) {
    api.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, timestamps_, 0);
  }
  api.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_);
  api.CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout_, 0, 1, &descriptors_, 0, nullptr);
  api.CmdPushConstants(commands, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(quads_a_row_), &quads_a_row_);
  api.CmdDispatch(commands, (quads_a_row_ + threads * kQuadsAThread - 1) / (threads * kQuadsAThread), rows_, 1);
  if (timestamps_ != VK_NULL_HANDLE) {
    api.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, timestamps_, 1);
  }
}

uint64_t MaxPass::Run() {
  const Api& api = context_->api();
  Record();
  const auto start = std::chrono::steady_clock::now();
  SORTITION_CHECK(commands_.Run().ok());
  if (timestamps_ == VK_NULL_HANDLE) {
    return uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  }
  uint64_t ticks[2] = {};
  Check(api.GetQueryPoolResults(context_->device(), timestamps_, 0, 2, sizeof(ticks), ticks, sizeof(ticks[0]),
                                VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
  return uint64_t(double(ticks[1] - ticks[0]) * double(context_->hardware().limits.timestampPeriod));
}

}  // namespace sortition::bench
