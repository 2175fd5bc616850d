// Start-time fair queueing (Goyal, Vin and Cheng, 1996): shares work equally among members that have no limit of their
// own.
//
// A virtual clock counts work. A member's tag is the clock value at which its next turn begins. A member joins with the
// clock's value as its tag, and each turn adds its cost to the tag. The member with the least tag goes next, and its
// tag becomes the clock. So members that always want more get equal work, give or take one turn; one that wants less
// gets all it wants; an absent member saves nothing up. An idle member stays until the clock has reached its tag: it
// cannot lower its tag by leaving and returning.
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

// `Member` has `bool empty() const`, true while it wants no turn.
template <typename Member>
class FairOrder {
 public:
  bool empty() const { return order_.empty(); }
  // Effective number of members that share the work: work done per unit of virtual time, averaged over recent turns. A
  // member that takes less than its full share counts as a part of one. Before the first turn it is the number of
  // members.
  double sharers() const { return moved_ > 0 ? std::max(1.0, done_ / moved_) : double(order_.size()); }
  const Member* Find(uint64_t name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second->member;
  }
  // Returns the member, which joins if it is absent. The caller must give it work before any other call.
  Member& Join(uint64_t name) {
    std::unique_ptr<Entry>& entry = entries_[name];
    if (entry == nullptr) {
      entry = std::make_unique<Entry>(Entry{clock_, next_order_++, name, Member()});
      Push(entry.get());
    }
    return entry->member;
  }

  // The member whose turn it is; never empty. Among equal tags it is the member with the oldest last turn.
  Member& front() { return order_.front()->member; }
  const Member& front() const { return order_.front()->member; }
  // Ends the turn of front(), which did `cost` of work.
  void Charge(uint64_t cost) {
    Entry* const entry = Pop();
    const double kept = 1 - 1 / (64.0 + 4 * double(order_.size()));  // weight of the past after each turn
    done_ = kept * done_ + double(cost);
    moved_ = kept * moved_ + double(entry->tag - clock_);
    clock_ = entry->tag;
    entry->tag += cost;
    entry->order = next_order_++;
    Push(entry);
    Forget();
  }

  // Calls `visit` with each member, which may become empty meanwhile.
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
  // Removes the empty members with the least tags: the clock has reached them, since no other turn begins earlier.
  void Forget() {
    while (!order_.empty() && order_.front()->member.empty()) {
      const Entry* const entry = Pop();
      moved_ += double(entry->tag - clock_);
      clock_ = entry->tag;
      entries_.erase(uint64_t{entry->name});
    }
  }

  uint64_t clock_ = 0;
  double done_ = 0;   // recent work, decayed
  double moved_ = 0;  // recent movement of the clock, decayed
  uint64_t next_order_ = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> order_;  // a heap of all entries; its front goes next and is not empty
};

}  // namespace sortition::service
