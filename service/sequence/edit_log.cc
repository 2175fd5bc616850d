// Names of lists, from a counter.
#include "service/sequence/edit_log.h"

#include <algorithm>
#include <atomic>

namespace sortition::service {
namespace {

uint64_t NewList() {
  static std::atomic<uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

EditLog EditLog::OfNewList() {
  EditLog edit_log;
  edit_log.list_ = NewList();
  return edit_log;
}

void EditLog::Push(uint32_t token) {
  ++version_;
  if (count_ == kTokens) {
    std::copy(tokens_.begin() + 1, tokens_.end(), tokens_.begin());
    --count_;
  }
  tokens_[count_++] = token;
}

kernels::EditOrigin EditLog::origin() const {
  const uint64_t named = named_.value_or(version_);
  return {list_, named, static_cast<uint32_t>(version_ - named), {tokens_.data(), count_}};
}

}  // namespace sortition::service
