// The name of a sequence's patches, and the tokens whose patches changed last: what a device needs that keeps a copy.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/row.h"

namespace sortition::service {

// The versions of one list (kernels::PatchOrigin). A plain value, so that a step's snapshot has its own. Of all copies
// of a trail only one may be pushed to without Leave, or two lists had one name. Not thread-safe.
class PatchTrail {
 public:
  // More changes back, nothing is known. A step changes one token, or two with a window of penalties; one after drafts
  // is as many more as were accepted behind what devices have.
  static constexpr uint32_t kTokens = 32;

  // Of no list: it names nothing.
  PatchTrail() = default;
  static PatchTrail OfNewList();

  // The patch of `token` may be another from now on.
  void Push(uint32_t token);

  // What is pushed from now on makes no versions; origin() says how many changes it is ahead of this one.
  void Leave() { named_ = named_.value_or(version_); }

  // Nothing was pushed between this and `other`, of which one was copied from the other.
  bool SamePatches(const PatchTrail& other) const { return list_ == other.list_ && version_ == other.version_; }

  // Refers to this.
  kernels::PatchOrigin origin() const;

 private:
  uint64_t list_ = 0;
  uint64_t version_ = 0;           // counts pushes
  std::optional<uint64_t> named_;  // the last version, after Leave
  uint32_t count_ = 0;
  std::array<uint32_t, kTokens> tokens_ = {};  // `count_` of them, the last change's last
};

}  // namespace sortition::service
