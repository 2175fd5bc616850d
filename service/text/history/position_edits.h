// The edits that a row sees at one position, which differ little from those at its other positions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/row.h"

namespace sortition::service {

// A list of edits that positions share, and what the position changes in it. The list of a position is made when it is
// asked for, in memory that positions share, too: it is valid until that of another position is. Copies are cheap while
// little is changed. Not thread-safe, together with all that share the list, unless all of these were kept.
class PositionEdits {
 public:
  using List = std::vector<kernels::LogitEdit>;

  // Changes nothing. Copies share no memory before Share.
  explicit PositionEdits(std::shared_ptr<const List> all) : all_(std::move(all)) {}
  // Lets later copies, and the edits that With makes of these, share memory.
  void Share() { shared_ = std::make_shared<Shared>(); }

  // Returns the edits of a position that shares the list and has `changed`, sorted by token, in place of its edits of
  // these tokens. One without effect stands for none.
  PositionEdits With(List changed) const;
  // Returns these edits, and a ban of each token of `banned`, which is sorted. O(banned * log edits).
  PositionEdits WithBans(std::span<const uint32_t> banned) const;

  // Edits without effect may be among these.
  const List& operator*() const;
  operator std::span<const kernels::LogitEdit>() const { return **this; }

  // Gives a changed list memory that stays: that of `before`, which was kept, if they are equal, else new memory.
  void Keep(const PositionEdits* before);

  bool changes() const { return !changed_.empty(); }
  size_t changed() const { return changed_.size(); }
  // The most edits that the list has.
  size_t size() const { return all_->size() + changed_.size(); }
  bool SharesWith(const PositionEdits& other) const { return shared_ == other.shared_; }

 private:
  // The edits of a token that some position changes.
  struct Place {
    kernels::LogitEdit shared;  // without effect if there is none
    size_t index = 0;           // in `list`
  };
  struct Shared {
    void Lay(const List& all);
    void Set(const List& changed);

    std::vector<uint32_t> tokens;  // that positions change
    std::vector<Place> places;     // of these, sorted by token
    List list;                     // empty: not made yet
    List set;                      // the changes in it
  };

  std::shared_ptr<const List> all_;
  std::shared_ptr<Shared> shared_;  // null: no other edits share memory, and none are changed
  List changed_;
  std::shared_ptr<const List> kept_;  // null: not kept
};

}  // namespace sortition::service
