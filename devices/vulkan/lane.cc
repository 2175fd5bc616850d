// A batch on the device: upload, kernels, download.
#include "devices/vulkan/lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "kernels/law/race_by_list.h"

namespace sortition::devices::vulkan {

using kernels::vulkan::Chunk;
using kernels::vulkan::RawOutput;
using kernels::vulkan::RowInput;
using kernels::vulkan::Shader;

namespace {

// Waits for earlier kernels and copies, and makes their results visible to the host and to later ones.
void RecordBarrier(const Api& api, VkCommandBuffer commands) {
  VkMemoryBarrier barrier = {VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                          VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT;
  constexpr VkPipelineStageFlags kWork = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  api.CmdPipelineBarrier(commands, kWork, kWork | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, nullptr, 0, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lane>> Lane::Create(std::shared_ptr<Context> context, const LaneOptions& options) {
  std::unique_ptr<Lane> lane(new Lane(std::move(context), options));
  if (absl::Status status = lane->Open(); !status.ok()) return status;
  return lane;
}

Lane::~Lane() {
  const Api& api = context_->api();
  const VkDevice device = context_->device();
  api.DestroyQueryPool(device, timestamps_, nullptr);
  api.DestroyDescriptorPool(device, descriptor_pool_, nullptr);
}

absl::Status Lane::Open() {
  const Api& api = context_->api();
  const VkDevice device = context_->device();
  const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kernels::vulkan::kBindings};
  VkDescriptorPoolCreateInfo pool = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
  pool.maxSets = 1;
  pool.poolSizeCount = 1;
  pool.pPoolSizes = &size;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateDescriptorPool(device, &pool, nullptr, &descriptor_pool_));
  const VkDescriptorSetLayout layout = context_->set_layout();
  VkDescriptorSetAllocateInfo set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
  set.descriptorPool = descriptor_pool_;
  set.descriptorSetCount = 1;
  set.pSetLayouts = &layout;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.AllocateDescriptorSets(device, &set, &descriptors_));

  if (context_->hardware().has_timestamps) {
    VkQueryPoolCreateInfo queries = {VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    queries.queryType = VK_QUERY_TYPE_TIMESTAMP;
    queries.queryCount = 2;
    SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateQueryPool(device, &queries, nullptr, &timestamps_));
  }
  return commands_.Open();
}

absl::Status Lane::Run(std::span<const DeviceRow> rows, std::vector<kernels::RowOutput>* outputs,
                       uint64_t* nanoseconds) {
  const law::RaceByList by_list(rows);
  rows = by_list.rows();
  const size_t before = outputs->size();
  while (!rows.empty()) {
    size_t taken = 0;
    absl::Status status = RunChunk(rows, &taken, outputs, nanoseconds);
    if (absl::IsUnavailable(status)) context_->SetLost();
    if (!status.ok()) return status;
    rows = rows.subspan(taken);
  }
  by_list.Finish(std::span(*outputs).subspan(before));
  return absl::OkStatus();
}

absl::Status Lane::RunChunk(std::span<const DeviceRow> rows, size_t* taken, std::vector<kernels::RowOutput>* outputs,
                            uint64_t* nanoseconds) {
  // Kernels read the device's copy; the request's own pointer only has to be non-null.
  std::vector<kernels::RowRequest> requests;
  requests.reserve(rows.size());
  Chunk chunk;
  for (const DeviceRow& row : rows) {
    requests.push_back(row.request);
    requests.back().logits = row.segments.front().data;
    if (!chunk.Add(requests.back(), options_.most_bytes)) break;
  }
  if (chunk.rows() == 0) {
    return absl::ResourceExhaustedError("a row is larger than any buffer of the Vulkan device");
  }
  *taken = chunk.rows();
  if (absl::Status status = Reserve(chunk.sizes()); !status.ok()) return status;
  const absl::Cleanup release = [this] {
    if (commands_.IsDone()) logits_.Release();
  };
  if (absl::Status status = Upload(rows.first(*taken), &chunk); !status.ok()) return status;
  if (absl::Status status = Record(chunk); !status.ok()) return status;
  if (absl::Status status = RunCommands(nanoseconds); !status.ok()) return status;
  for (uint32_t row = 0; row < chunk.rows(); ++row) {
    outputs->push_back(chunk.ReadOutput(row, outputs_.on_host<RawOutput>(), tops_.on_host<uint32_t>()));
  }
  return absl::OkStatus();
}

absl::Status Lane::Reserve(const Chunk::Sizes& sizes) {
  Context* const context = context_.get();
  if (absl::Status status = logits_.Reserve(context_, options_.copies, sizes.logits); !status.ok()) return status;
  const struct {
    SharedBuffer* buffer;
    Memory memory;
    uint64_t bytes;
  } shared[] = {{&inputs_, Memory::kHost, sizes.inputs},
                {&extras_, Memory::kHost, sizes.extras},
                {&outputs_, Memory::kHostCached, sizes.outputs},
                {&tops_, Memory::kHostCached, sizes.tops}};
  for (const auto& [buffer, memory, bytes] : shared) {
    absl::Status status = buffer->Reserve(context, memory, options_.copies, std::max<uint64_t>(bytes, 4));
    if (!status.ok()) return status;
  }
  if (absl::Status status = scratch_.Reserve(context, Memory::kDevice, sizes.scratch); !status.ok()) return status;
  Bind();
  return absl::OkStatus();
}

void Lane::Bind() {
  const struct {
    VkBuffer buffer;
    uint64_t bytes;
  } bound[] = {{logits_.on_device(), logits_.bytes()},   {inputs_.on_device(), inputs_.bytes()},
               {extras_.on_device(), extras_.bytes()},   {scratch_.handle(), scratch_.bytes()},
               {outputs_.on_device(), outputs_.bytes()}, {tops_.on_device(), tops_.bytes()}};
  VkDescriptorBufferInfo buffers[kernels::vulkan::kBindings];
  VkWriteDescriptorSet writes[kernels::vulkan::kBindings];
  for (uint32_t binding = 0; binding < kernels::vulkan::kBindings; ++binding) {
    buffers[binding] = {bound[binding].buffer, 0, bound[binding].bytes};
    writes[binding] = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    writes[binding].dstSet = descriptors_;
    writes[binding].dstBinding = binding;
    writes[binding].descriptorCount = 1;
    writes[binding].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    writes[binding].pBufferInfo = &buffers[binding];
  }
  context_->api().UpdateDescriptorSets(context_->device(), kernels::vulkan::kBindings, writes, 0, nullptr);
}

absl::Status Lane::Upload(std::span<const DeviceRow> rows, Chunk* chunk) {
  if (absl::Status status = logits_.Put(rows, *chunk); !status.ok()) return status;
  chunk->WriteExtras(extras_.on_host<uint32_t>());
  chunk->WriteInputs(inputs_.on_host<RowInput>());
  return absl::OkStatus();
}

absl::Status Lane::Dispatch(const Chunk& chunk, Shader shader, bool chained, uint32_t x, uint32_t y) {
  const Api& api = context_->api();
  const uint32_t threads = context_->workgroups().ThreadsOf(shader, chunk.max_vocabulary());
  const auto pipeline = context_->Pipeline({shader, chained, threads});
  if (!pipeline.ok()) return pipeline.status();
  RecordBarrier(api, commands_.handle());
  api.CmdBindPipeline(commands_.handle(), VK_PIPELINE_BIND_POINT_COMPUTE, *pipeline);
  api.CmdDispatch(commands_.handle(), x, y, 1);
  return absl::OkStatus();
}

absl::Status Lane::Record(const Chunk& chunk) {
  const Api& api = context_->api();
  const Chunk::Sizes& sizes = chunk.sizes();
  if (absl::Status status = commands_.Begin(); !status.ok()) return status;
  const VkCommandBuffer commands = commands_.handle();
  if (timestamps_ != VK_NULL_HANDLE) api.CmdResetQueryPool(commands, timestamps_, 0, 2);
  logits_.Record(api, commands);
  inputs_.RecordUpload(api, commands, sizes.inputs);
  extras_.RecordUpload(api, commands, sizes.extras);
  api.CmdFillBuffer(commands, outputs_.on_device(), 0, sizes.outputs, kernels::vulkan::kNone);
  if (timestamps_ != VK_NULL_HANDLE) {
    api.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, timestamps_, 0);
  }

  const VkDescriptorSet set = descriptors_;
  api.CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, context_->pipeline_layout(), 0, 1, &set, 0,
                            nullptr);
  const uint32_t rows = chunk.rows();
  const uint32_t threads = context_->workgroups().section;
  const auto run = [&](Shader shader, uint32_t x, uint32_t y) {
    for (const bool chained : {false, true}) {
      if (!chunk.Needs(shader, chained)) continue;
      if (absl::Status status = Dispatch(chunk, shader, chained, x, y); !status.ok()) return status;
    }
    return absl::OkStatus();
  };
  struct Step {
    Shader shader;
    uint32_t x, y;
  };
  std::vector<Step> steps = {{Shader::kRead, chunk.sections(), rows},
                             {Shader::kEdit, (chunk.edits() + threads - 1) / threads, rows},
                             {Shader::kWeigh, chunk.sections(), rows}};
  for (uint32_t turn = 0; turn < chunk.turns(); ++turn) {
    for (const Shader shader : {Shader::kSum, Shader::kFallOff, Shader::kChain, Shader::kSearch, Shader::kChain}) {
      steps.push_back({shader, rows, 1});
    }
  }
  steps.insert(steps.end(), {{Shader::kSample, rows, 1},
                             {Shader::kVerify, rows, 1},
                             {Shader::kDescribe, rows, 2},
                             {Shader::kPlace, rows, 2},
                             {Shader::kList, rows, 1}});
  for (const Step& step : steps) {
    if (absl::Status status = run(step.shader, step.x, step.y); !status.ok()) return status;
  }

  RecordBarrier(api, commands);
  outputs_.RecordDownload(api, commands, sizes.outputs);
  tops_.RecordDownload(api, commands, sizes.tops);
  RecordBarrier(api, commands);
  if (timestamps_ != VK_NULL_HANDLE) {
    api.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, timestamps_, 1);
  }
  return absl::OkStatus();
}

absl::Status Lane::RunCommands(uint64_t* nanoseconds) {
  const Api& api = context_->api();
  const auto start = std::chrono::steady_clock::now();
  if (absl::Status status = commands_.Run(); !status.ok()) return status;
  if (timestamps_ == VK_NULL_HANDLE) {
    *nanoseconds += uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    return absl::OkStatus();
  }
  uint64_t ticks[2] = {};
  SORTITION_VULKAN_RETURN_IF_ERROR(api.GetQueryPoolResults(context_->device(), timestamps_, 0, 2, sizeof(ticks), ticks,
                                                           sizeof(ticks[0]),
                                                           VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
  *nanoseconds += uint64_t(double(ticks[1] - ticks[0]) * double(context_->hardware().limits.timestampPeriod));
  return absl::OkStatus();
}

}  // namespace sortition::devices::vulkan
