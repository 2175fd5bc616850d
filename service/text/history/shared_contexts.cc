// Layers of context indexes.
#include "service/text/history/shared_contexts.h"

#include <algorithm>

#include "kernels/check.h"

namespace sortition::service {

SharedContexts::SharedContexts(uint32_t least, uint32_t depth)
    : least_(least),
      depth_(depth),
      own_(std::make_shared<ContextIndex>(least, depth)),
      own_begin_(depth),
      end_(depth) {}

void SharedContexts::Fill(const TokenLog& log) {
  for (; end_ < log.length(); ++end_) own_->AddNewest(log, end_);
}

void SharedContexts::Pushed(const TokenLog& log) {
  if (log.length() <= depth_) return;
  SORTITION_CHECK(log.length() == end_ + 1);
  own_->AddNewest(log, end_++);
}

void SharedContexts::Popping(const TokenLog& log, uint32_t length) {
  if (length <= end_) CutTo(log, std::max(length - 1, depth_));
}

void SharedContexts::Find(const TokenLog& log, ContextIndex::AllFound* found) const {
  const uint32_t length = log.length();
  if (length < depth_) return;
  for (const Layer& layer : layers_) layer.index->Find(log, length, found, layer.end);
  own_->Find(log, length, found);
  for (uint32_t position = end_; position < length; ++position) {
    const uint32_t common = log.CommonEnd(position, length, depth_);
    if (common >= least_) found->push_back({log.at(position), common});
  }
}

uint64_t SharedContexts::Looks(const TokenLog& log) const {
  const uint32_t length = log.length();
  if (length < depth_) return 0;
  uint64_t looks = own_->Looks(log, length);
  for (const Layer& layer : layers_) looks += layer.index->Looks(log, length, layer.end);
  return looks;
}

bool SharedContexts::Finds(const TokenLog& log) const {
  const uint32_t length = log.length();
  if (length < depth_) return false;
  for (const Layer& layer : layers_) {
    if (layer.index->Finds(log, length, layer.end)) return true;
  }
  for (uint32_t position = end_; position < length; ++position) {
    if (log.CommonEnd(position, length, depth_) >= least_) return true;
  }
  return own_->Finds(log, length);
}

SharedContexts SharedContexts::Fork(const TokenLog& log, uint32_t length) {
  if (end_ - own_begin_ > kMostCopied) Share(log);
  SharedContexts fork(*this);
  fork.own_ = std::make_shared<ContextIndex>(*own_);
  fork.CutTo(log, std::max(length, depth_));
  return fork;
}

// Makes a layer of the positions that are not shared, and one of layers that would not differ enough in size.
void SharedContexts::Share(const TokenLog& log) {
  layers_.push_back({std::move(own_), own_begin_, end_});
  while (layers_.size() > 1 && 2 * layers_.back().size() >= layers_[layers_.size() - 2].size()) {
    const uint32_t begin = layers_[layers_.size() - 2].begin;
    auto both = std::make_shared<ContextIndex>(least_, depth_);
    for (uint32_t position = begin; position < end_; ++position) both->AddNewest(log, position);
    layers_.resize(layers_.size() - 2);
    layers_.push_back({std::move(both), begin, end_});
  }
  own_ = std::make_shared<ContextIndex>(least_, depth_);
  own_begin_ = end_;
}

void SharedContexts::CutTo(const TokenLog& log, uint32_t end) {
  for (; end_ > std::max(end, own_begin_); --end_) own_->RemoveNewest(log);
  if (end >= end_) return;
  while (!layers_.empty() && layers_.back().begin >= end) layers_.pop_back();
  if (!layers_.empty()) layers_.back().end = end;
  own_begin_ = end_ = end;
}

uint64_t SharedContexts::bytes() const {
  uint64_t bytes = own_->bytes() + layers_.capacity() * sizeof(Layer);
  for (const Layer& layer : layers_) bytes += layer.index->bytes();
  return bytes;
}

}  // namespace sortition::service
