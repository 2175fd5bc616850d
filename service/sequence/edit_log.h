// The name of a sequence's edits, and the tokens whose edits changed last: what a device needs that keeps a copy.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/row.h"

namespace sortition::service {

// The versions of one list (kernels::EditOrigin). A plain value, so that a step's snapshot has its own. Of all copies
// of a trail only one may be pushed to without Leave, or two lists had one name. Not thread-safe.
class EditLog {
 public:
  // More changes back, nothing is known. A step changes one token, or two with a window of penalties; one after drafts
  // is as many more as were accepted behind what devices have.
  static constexpr uint32_t kTokens = 32;

  // Of no list: it names nothing.
  EditLog() = default;
  static EditLog OfNewList();

  // The edit of `token` may be another from now on.
  void Push(uint32_t token);

  // What is pushed from now on makes no versions; origin() says how many changes it is ahead of this one.
  void Leave() { named_ = named_.value_or(version_); }

  // Nothing was pushed between this and `other`, of which one was copied from the other.
  bool SameEdits(const EditLog& other) const { return list_ == other.list_ && version_ == other.version_; }

  // Refers to this.
  kernels::EditOrigin origin() const;

 private:
  uint64_t list_ = 0;
  uint64_t version_ = 0;           // counts pushes
  std::optional<uint64_t> named_;  // the last version, after Leave
  uint32_t count_ = 0;
  std::array<uint32_t, kTokens> tokens_ = {};  // `count_` of them, the last change's last
};

}  // namespace sortition::service
