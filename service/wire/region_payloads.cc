// Checks ranges within regions.
#include "service/wire/region_payloads.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/checks.h"

namespace sortition::service {
namespace {

uint32_t ElementBytes(v1::DType dtype) { return dtype == v1::DTYPE_F32 ? 4 : 2; }

RegionRange ToRange(const v1::TensorSource::MemoryRegion& source) {
  return {source.region_id(), source.offset(), source.length()};
}

Refusal UnknownRegion(const std::string& field, const RegionRange& range) {
  return Refusal{Reason::kUnknownRegion, field + ".region_id", "",
                 absl::StrCat("this stream has no memory region ", range.region_id)};
}

// The reader of a tensor. Only tensors that devices read may lie in a device's memory.
enum class Reader { kDevice, kHost };

// Returns the region of the range. Refuses a range that is not wholly within one.
std::variant<std::shared_ptr<const Region>, Refusal> FindRange(const RegionRange& range, uint32_t alignment,
                                                               Reader reader, const std::string& field,
                                                               const MemoryConnection* memory) {
  std::shared_ptr<const Region> region = memory == nullptr ? nullptr : memory->Find(range.region_id);
  if (region == nullptr) return UnknownRegion(field, range);
  if (reader == Reader::kHost && region->imported() != nullptr) {
    return Refusal{Reason::kOutOfRange, field + ".region_id", "a region of the host's memory",
                   "a device's memory holds logits only"};
  }
  const uint64_t size = region->bytes().size();
  if (range.offset > size || range.length > size - range.offset || range.length == 0) {
    return Refusal{Reason::kOutOfRange, field, absl::StrCat("1..", size, " bytes"),
                   absl::StrCat(range.length, " bytes from ", range.offset, " are not within the region")};
  }
  if (range.offset % alignment != 0) {
    return Refusal{Reason::kOutOfRange, field + ".offset", absl::StrCat("a multiple of ", alignment),
                   absl::StrCat("no element begins at ", range.offset)};
  }
  return region;
}

std::optional<Refusal> AddPayload(const v1::TensorSource& source, uint32_t alignment, Reader reader,
                                  const std::string& field, const MemoryConnection* memory, RegionPayloads* payloads) {
  if (!source.has_region()) return std::nullopt;
  const RegionRange range = ToRange(source.region());
  auto found = FindRange(range, alignment, reader, field, memory);
  if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
  auto& region = std::get<std::shared_ptr<const Region>>(found);
  Payload payload;
  payload.segments = {{region->bytes().data() + range.offset, range.length}};
  payload.size = range.length;
  payload.range = range;
  payload.imported = region->imported();
  payload.owner = std::move(region);
  payload.may_change = true;
  payloads->push_back(std::move(payload));
  return std::nullopt;
}

}  // namespace

std::variant<RegionPayloads, Refusal> FindRegionPayloads(const v1::Step& step, const MemoryConnection* memory) {
  RegionPayloads payloads;
  const v1::DraftTensor& drafts = step.draft_probabilities();
  const struct {
    const v1::TensorSource& source;
    uint32_t alignment;
    Reader reader;
    const char* field;
  } tensors[] = {
      {step.logits().source(), ElementBytes(step.logits().dtype()), Reader::kDevice, "step.logits.source.region"},
      {step.logits().pairs(), 1, Reader::kHost, "step.logits.pairs.region"},
      {step.masks().source(), sizeof(uint32_t), Reader::kHost, "step.masks.source.region"},
      {drafts.source(), ElementBytes(drafts.dtype()), Reader::kHost, "step.draft_probabilities.source.region"},
  };
  for (const auto& tensor : tensors) {
    if (auto refusal = AddPayload(tensor.source, tensor.alignment, tensor.reader, tensor.field, memory, &payloads)) {
      return *std::move(refusal);
    }
  }
  return payloads;
}

std::variant<RegionPayloads, Refusal> FindRegionPayloads(const v1::UploadMask& upload, const MemoryConnection* memory) {
  RegionPayloads payloads;
  auto refusal = AddPayload(upload.mask().source(), sizeof(uint32_t), Reader::kHost, "upload_mask.mask.source.region",
                            memory, &payloads);
  if (refusal) return *std::move(refusal);
  return payloads;
}

std::variant<std::optional<SharedReadyWord>, Refusal> FindReadyWord(const v1::LogitsTensor& logits,
                                                                    const MemoryConnection* memory) {
  const std::string field = "step.logits.ready";
  if (!logits.has_ready()) return std::optional<SharedReadyWord>();
  if (logits.has_shard()) {
    return Refusal{Reason::kNotImplemented, field, "", "shards of rows are there when their step is sent"};
  }
  if (!logits.source().has_region()) {
    return Refusal{Reason::kContradiction, field, "", "the logits have come with the message"};
  }
  const v1::ReadyWord& word = logits.ready();
  const RegionRange range = {word.region_id(), word.offset(), sizeof(uint32_t)};
  auto found = FindRange(range, sizeof(uint32_t), Reader::kHost, field, memory);
  if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
  return SharedReadyWord(std::get<std::shared_ptr<const Region>>(std::move(found)), range.offset, word.value());
}

std::variant<size_t, Refusal> FindPayload(const v1::TensorSource& source, std::span<const Payload> payloads,
                                          const std::string& field) {
  switch (source.kind_case()) {
    case v1::TensorSource::kInline: {
      const uint32_t payload = source.inline_().payload();
      const auto own = std::ranges::count_if(payloads, [](const Payload& payload) { return !payload.range; });
      if (payload < own) return size_t{payload};
      return Refusal{Reason::kOutOfRange, field + ".inline.payload", absl::StrCat("< ", own),
                     absl::StrCat("the message has ", own, " payloads")};
    }
    case v1::TensorSource::kRegion: {
      const RegionRange range = ToRange(source.region());
      for (size_t i = 0; i < payloads.size(); ++i) {
        if (payloads[i].range == range) return i;
      }
      return UnknownRegion(field + ".region", range);
    }
    case v1::TensorSource::KIND_NOT_SET:
      break;
  }
  return MissingField(field + ".kind");
}

}  // namespace sortition::service
