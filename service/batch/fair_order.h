// Whose turn it is among members who each want as much as they can get: start-time fair queueing (Goyal, Vin and Cheng,
// 1996).
//
// A clock counts work. A member's tag is where its next turn begins on it: at the clock when the member joins, and
// after each turn later by what the turn cost. The member of the least tag goes next, and its tag is the clock. So
// members who always want more get equal work, give or take one turn, one who wants less gets all it wants, and whoever
// was away is owed nothing. A member that has nothing to do for now stays until the clock has reached its tag: by
// coming back it cannot forget what it has had.
//
// A turn costs O(log members). Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace sortition::service {

// `Member` has bool empty() const, which says that it wants no turn now.
template <typename Member>
class FairOrder {
 public:
  bool empty() const { return order_.empty(); }
  // Among how many the work has been shared out of late: how much was done while the clock moved by one. Who has taken
  // less than a full share counts for less than one. Before any turn, how many members there are.
  double sharers() const { return moved_ > 0 ? std::max(1.0, done_ / moved_) : double(order_.size()); }
  const Member* Find(uint64_t name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second->member;
  }
  // Joins if it is not there. The caller gives it something to do before any other call.
  Member& Join(uint64_t name) {
    std::unique_ptr<Entry>& entry = entries_[name];
    if (entry == nullptr) {
      entry = std::make_unique<Entry>(Entry{clock_, next_order_++, name, Member()});
      Push(entry.get());
    }
    return entry->member;
  }

  // The member whose turn it is; not empty. Of equals it is who has waited for longer since its last turn.
  Member& front() { return order_.front()->member; }
  const Member& front() const { return order_.front()->member; }
  // That member has had its turn.
  void Charge(uint64_t cost) {
    Entry* const entry = Pop();
    const double kept = 1 - 1 / (64.0 + 4 * double(order_.size()));  // of what was learned, each turn
    done_ = kept * done_ + double(cost);
    moved_ = kept * moved_ + double(entry->tag - clock_);
    clock_ = entry->tag;
    entry->tag += cost;
    entry->order = next_order_++;
    Push(entry);
    Forget();
  }

  // For each member, which may become empty meanwhile.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (Entry* const entry : order_) visit(entry->member);
    Forget();
  }

 private:
  struct Entry {
    uint64_t tag;
    uint64_t order;
    uint64_t name;
    Member member;
  };

  static bool IsAfter(const Entry* a, const Entry* b) {
    return a->tag != b->tag ? a->tag > b->tag : a->order > b->order;
  }
  void Push(Entry* entry) {
    order_.push_back(entry);
    std::push_heap(order_.begin(), order_.end(), IsAfter);
  }
  Entry* Pop() {
    std::pop_heap(order_.begin(), order_.end(), IsAfter);
    Entry* const entry = order_.back();
    order_.pop_back();
    return entry;
  }
  // Empty members whose tags are least: no other's turn begins before the clock has reached them.
  void Forget() {
    while (!order_.empty() && order_.front()->member.empty()) {
      const Entry* const entry = Pop();
      moved_ += double(entry->tag - clock_);
      clock_ = entry->tag;
      entries_.erase(uint64_t{entry->name});
    }
  }

  uint64_t clock_ = 0;
  double done_ = 0;   // of late
  double moved_ = 0;  // the clock, meanwhile
  uint64_t next_order_ = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> order_;  // a heap of all entries, whose front goes next and is not empty
};

}  // namespace sortition::service
