// Views of gRPC's slices.
#include "service/server/received_message.h"

#include <cstddef>
#include <utility>

#include "kernels/check.h"

namespace sortition::server {

ReceivedMessage::ReceivedMessage(grpc::ByteBuffer* buffer, std::shared_ptr<ReceiveBudget> budget)
    : budget_(std::move(budget)), bytes_(buffer->Length()) {
  // An empty message has no buffer at all.
  if (buffer->Valid()) SORTITION_CHECK(buffer->Dump(&slices_).ok());
  buffer->Clear();
  // A short slice holds its bytes within itself, so the views are taken where the slices stay.
  segments_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    segments_.push_back({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
  }
  budget_->held_bytes_.fetch_add(bytes_, std::memory_order_relaxed);
}

ReceivedMessage::~ReceivedMessage() { budget_->held_bytes_.fetch_sub(bytes_, std::memory_order_relaxed); }

}  // namespace sortition::server
