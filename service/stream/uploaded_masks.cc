// Uploading, finding and counting masks.
#include "service/stream/uploaded_masks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "service/checks.h"
#include "service/wire/payload_view.h"
#include "service/wire/region_payloads.h"
#include "service/wire/stream_request.h"

namespace sortition::service {

std::optional<Refusal> UploadedMasks::Upload(const v1::UploadMask& upload, std::span<const Payload> payloads) {
  const auto known = masks_.find(upload.mask_id());
  const uint64_t freed = known == masks_.end() ? 0 : known->second->bytes();
  if (!upload.has_mask()) {
    if (!payloads.empty()) {
      return Refusal{Reason::kContradiction, "payloads[0]", "", "nothing refers to this payload"};
    }
    if (known != masks_.end()) masks_.erase(known);
    bytes_ -= freed;
    return std::nullopt;
  }
  const auto found = FindPayload(upload.mask().source(), payloads, "upload_mask.mask.source");
  if (const auto* refusal = std::get_if<Refusal>(&found)) return *refusal;
  if (auto refusal = CheckCount(payloads.size(), 1, "payloads")) return refusal;
  const Payload& payload = payloads[std::get<size_t>(found)];
  if (auto refusal = CheckUploadMask(upload, limits_)) return refusal;
  const Bounds bounds(limits_);
  PackedMask mask;
  mask.vocabulary = upload.vocabulary_size();
  mask.words.resize((uint64_t{mask.vocabulary} + 31) / 32);
  const uint64_t want = mask.bytes();
  if (payload.size != want) {
    return Refusal{Reason::kSizeMismatch, payload.range ? "upload_mask.mask.source.region.length" : "payloads[0]",
                   absl::StrCat(want, " bytes"),
                   absl::StrCat("has ", payload.size, " bytes; a mask of this vocabulary needs ", want)};
  }
  if (known == masks_.end()) {
    if (auto refusal = CheckCount(masks_.size() + 1, bounds.stream_masks(), "upload_mask")) return refusal;
  }
  const uint64_t held_bytes = bytes_ - freed + want;
  if (auto refusal = CheckByteCount(held_bytes, bounds.stream_mask_bytes(), "upload_mask")) return refusal;
  // Read once: later changes of the worker's memory have no effect.
  PayloadView(payload).Copy(0, want, mask.words.data());
  std::shared_ptr<const PackedMask> held = memory_.Hold(std::move(mask));
  if (held == nullptr) {
    return Refusal{Reason::kOverloaded, "upload_mask", bounds.max_mask_bytes().Text(),
                   "all streams together hold too many masks", absl::Milliseconds(100)};
  }
  masks_[upload.mask_id()] = std::move(held);
  bytes_ += want - freed;
  return std::nullopt;
}

std::variant<std::shared_ptr<const PackedMask>, Refusal> UploadedMasks::Find(uint64_t mask_id, uint32_t vocabulary,
                                                                             const std::string& field) const {
  const auto it = masks_.find(mask_id);
  if (it == masks_.end()) {
    return Refusal{Reason::kUnknownMask, field, "", absl::StrCat("this stream holds no mask of the id ", mask_id)};
  }
  if (it->second->vocabulary != vocabulary) {
    return Refusal{Reason::kVocabularyMismatch, field, absl::StrCat(vocabulary),
                   absl::StrCat("the mask was uploaded for another width, ", it->second->vocabulary)};
  }
  return it->second;
}

}  // namespace sortition::service
