// Encodes messages. The payloads are appended by hand, as key, length and bytes that are not copied.
#include "client/cpp/message.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "client/cpp/row_message.h"
#include "client/cpp/transport/shared_memory.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/io/coded_stream.h"

namespace sortition::client {
namespace {

// Field number and wire type "length-delimited".
constexpr uint32_t kPayloadKey = v1::StreamRequest::kPayloadsFieldNumber << 3 | 2;

// Upper bound on the encoded size, without tensors, of a step message that is kept for reuse.
constexpr int kMostSpareBytes = 1 << 16;

std::string PayloadPrefix(uint64_t bytes) {
  uint8_t buffer[15];
  uint8_t* end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(kPayloadKey, buffer);
  end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(bytes, end);
  return std::string(reinterpret_cast<char*>(buffer), static_cast<size_t>(end - buffer));
}

// Appends a row to the runs. Adjacent rows travel as one run.
void AddRun(const void* data, size_t size, PayloadRuns* runs) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (!runs->empty() && runs->back().data() + runs->back().size() == bytes) {
    runs->back() = {runs->back().data(), runs->back().size() + size};
  } else {
    runs->emplace_back(bytes, size);
  }
}

void SetDuration(absl::Duration duration, google::protobuf::Duration* wire) {
  duration = absl::Ceil(duration, absl::Nanoseconds(1));  // a remaining time is never encoded as 0
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  wire->set_seconds(seconds);
  wire->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

uint64_t BytesOf(const PayloadRuns& runs) {
  uint64_t bytes = 0;
  for (const auto& run : runs) bytes += run.size();
  return bytes;
}

// Decides where each tensor of a message travels: in memory shared with the server, or in the message's payloads.
class TensorPlacer {
 public:
  TensorPlacer(SharedMemory* memory, std::vector<std::shared_ptr<void>>* leases) : memory_(memory), leases_(leases) {}

  void Put(PayloadRuns runs, size_t alignment, v1::TensorSource* source) {
    const uint64_t bytes = BytesOf(runs);
    if (const std::optional<MemoryPlace> place = Share(runs, bytes, alignment)) {
      source->mutable_region()->set_region_id(place->region_id);
      source->mutable_region()->set_offset(place->offset);
      source->mutable_region()->set_length(bytes);
      return;
    }
    source->mutable_inline_()->set_payload(static_cast<uint32_t>(payloads_.size()));
    payloads_.push_back(std::move(runs));
  }
  const std::vector<PayloadRuns>& payloads() const { return payloads_; }

 private:
  std::optional<MemoryPlace> Share(const PayloadRuns& runs, uint64_t bytes, size_t alignment) {
    if (memory_ == nullptr) return std::nullopt;
    if (runs.size() == 1) {
      if (const std::optional<MemoryPlace> place = memory_->Find(runs[0], alignment)) return place;
    }
    std::optional<SharedMemory::Room> room = memory_->Take(bytes);
    if (!room) return std::nullopt;
    std::byte* to = room->data;
    for (const auto& run : runs) {
      std::memcpy(to, run.data(), run.size());
      to += run.size();
    }
    leases_->push_back(std::move(room->lease));
    return room->place;
  }

  SharedMemory* const memory_;
  std::vector<std::shared_ptr<void>>* const leases_;
  std::vector<PayloadRuns> payloads_;
};

void DescribeShard(const OutgoingShard& outgoing, v1::VocabularyShard* message) {
  message->set_index(outgoing.shard.index);
  message->set_count(outgoing.shard.count);
  message->set_first_token(outgoing.shard.first_token);
  message->set_total_vocabulary_size(outgoing.shard.vocabulary_size);
  message->set_epoch(outgoing.epoch);
}

}  // namespace

void DescribeAsked(const PendingRow& row, uint32_t position, v1::StepRow* message) {
  message->set_request_id(row.record->options.request_id);
  message->set_step_id(row.step_id);
  message->set_position(position);
  DescribeTask(row.row, message);
  if (message->has_verify_draft()) message->mutable_verify_draft()->clear_sparse_probabilities();
}

OutgoingMessage EncodeMessage(const v1::StreamRequest& header, std::span<const PayloadRuns> payloads,
                              std::shared_ptr<void> hold, std::optional<std::string> own) {
  OutgoingMessage message;
  message.hold = std::move(hold);
  std::string next = header.SerializeAsString();
  for (const PayloadRuns& runs : payloads) {
    next += PayloadPrefix(BytesOf(runs));
    message.segments.push_back(Segment{std::exchange(next, {}), {}});
    for (const auto& run : runs) message.segments.push_back(Segment{{}, run});
  }
  if (own) next += PayloadPrefix(own->size());
  if (!next.empty()) message.segments.push_back(Segment{std::move(next), {}});
  if (own && !own->empty()) message.segments.push_back(Segment{*std::move(own), {}});
  return message;
}

bool IsShared(const PendingBatch& batch, const SharedMemory* memory) {
  if (memory == nullptr) return false;
  const auto* const first = static_cast<const std::byte*>(batch.rows[0].row.logits);
  for (size_t i = 1; i < batch.rows.size(); ++i) {
    if (batch.rows[i].row.logits != first + i * batch.row_bytes) return false;
  }
  return memory->Find({first, batch.rows.size() * batch.row_bytes}, ElementBytes(batch.dtype)).has_value();
}

std::optional<MemoryPlace> FindWord(const PendingBatch& batch, const SharedMemory* memory) {
  if (!batch.ready || memory == nullptr) return std::nullopt;
  const std::optional<MemoryPlace> place =
      memory->Find(std::as_bytes(std::span(batch.ready->word, 1)), sizeof(uint32_t));
  return place && !place->on_device ? place : std::nullopt;
}

OutgoingMessage EncodeStep(uint64_t batch_id, const PendingBatch& batch, std::span<const uint32_t> rows,
                           absl::Duration timeout, std::shared_ptr<void> hold, OutgoingKind kind, SharedMemory* memory,
                           std::vector<std::shared_ptr<void>>* leases) {
  const OutgoingShard* const shard = kind.shard;
  // Reused, so that the memory of its rows is not allocated again.
  thread_local auto spare = std::make_unique<v1::Step>();
  v1::StreamRequest header;
  header.set_allocated_step(spare.release());
  v1::Step& step = *header.mutable_step();
  step.set_batch_id(batch_id);
  step.mutable_logits()->set_dtype(batch.dtype);
  step.mutable_logits()->set_vocabulary_size(static_cast<uint32_t>(batch.row_bytes / ElementBytes(batch.dtype)));
  if (shard != nullptr) DescribeShard(*shard, step.mutable_logits()->mutable_shard());
  const bool leads = shard == nullptr || shard->shard.index == 0;
  if (timeout < absl::InfiniteDuration()) SetDuration(timeout, step.mutable_timeout());
  if (batch.priority != 0) step.set_priority(batch.priority);
  if (!batch.traceparent.empty()) step.mutable_trace()->set_traceparent(batch.traceparent);

  PayloadRuns logits;
  std::optional<std::string> pairs;  // empty if no row lists a token
  PayloadRuns masks;
  PayloadRuns drafts;
  TensorRows taken;
  const size_t draft_bytes = size_t{batch.vocabulary_size} * ElementBytes(batch.draft_dtype);
  const size_t mask_bytes = (size_t{batch.vocabulary_size} + 31) / 32 * sizeof(uint32_t);
  for (uint32_t index : rows) {
    const PendingRow& pending = batch.rows[index];
    v1::StepRow& row = *step.add_rows();
    row.set_request_id(pending.record->options.request_id);
    row.set_step_id(pending.step_id);
    {
      absl::MutexLock lock(&pending.record->mutex);
      pending.record->history.DescribeStep(&row);
      if (!leads) {  // rewrites come with shard 0
        row.clear_truncate_to();
        row.clear_append_tokens();
      }
      if (leads && !pending.record->checkpoint.empty()) row.set_checkpoint(pending.record->checkpoint);
    }
    DescribeTask(pending.row, &row);
    if (!pending.compact.empty() && !pairs) pairs.emplace();
    for (const CompactPosition& position : pending.compact) position.AppendTo(&*pairs, row.add_compact());
    if (pending.compact.empty()) AddRun(pending.row.logits, pending.row.positions() * batch.row_bytes, &logits);
    if (!leads) continue;
    NameTensors(pending.row, &taken, &row);
    if (pending.row.masks() > 0) AddRun(pending.row.allowed_bits, pending.row.masks() * mask_bytes, &masks);
    const Drafts* const proposed = pending.row.drafts;
    if (proposed != nullptr && proposed->probabilities != nullptr) {
      AddRun(proposed->probabilities, proposed->distributions() * draft_bytes, &drafts);
    }
  }
  TensorPlacer placer(memory, leases);
  if (!logits.empty()) {
    placer.Put(std::move(logits), ElementBytes(batch.dtype), step.mutable_logits()->mutable_source());
  }
  if (kind.names_word && step.logits().source().has_region()) {
    const MemoryPlace word = *FindWord(batch, memory);
    v1::ReadyWord& ready = *step.mutable_logits()->mutable_ready();
    ready.set_region_id(word.region_id);
    ready.set_offset(word.offset);
    ready.set_value(batch.ready->value);
  }
  if (taken.masks > 0) {
    placer.Put(std::move(masks), sizeof(uint32_t), step.mutable_masks()->mutable_source());
    step.mutable_masks()->set_rows(taken.masks);
  }
  if (taken.drafts > 0) {
    v1::DraftTensor& tensor = *step.mutable_draft_probabilities();
    placer.Put(std::move(drafts), ElementBytes(batch.draft_dtype), tensor.mutable_source());
    tensor.set_dtype(batch.draft_dtype);
    tensor.set_rows(taken.drafts);
  }
  if (pairs) {
    v1::TensorSource::Inline& own = *step.mutable_logits()->mutable_pairs()->mutable_inline_();
    own.set_payload(static_cast<uint32_t>(placer.payloads().size()));
  }
  OutgoingMessage message = EncodeMessage(header, placer.payloads(), std::move(hold), std::move(pairs));
  if (header.GetCachedSize() <= kMostSpareBytes) {
    spare.reset(header.release_step());
    spare->Clear();
  } else {
    spare = std::make_unique<v1::Step>();
  }
  return message;
}

}  // namespace sortition::client
