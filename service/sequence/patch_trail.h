// The name of a sequence's patches, and the tokens whose patches changed last: what a device needs that keeps a copy.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/row.h"

namespace sortition::service {

// As kernels::PatchOrigin says: the versions of one list. Plain data, so that a step's snapshot has its own. Of a
// trail and its copies one alone is pushed to, but after Leave. Not thread-safe.
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

  // What is pushed from now on is another way than that of the names, for this copy: origin() says how far it is ahead
  // of this version.
  void Leave() { named_ = named_.value_or(version_); }

  // Of a trail, and of a copy that it was made of or that was made of it, since it last went back to one: nothing has
  // been pushed between.
  bool NamesThoseOf(const PatchTrail& other) const { return list_ == other.list_ && version_ == other.version_; }

  // Refers to this.
  kernels::PatchOrigin origin() const;

 private:
  uint64_t list_ = 0;
  uint64_t version_ = 0;
  std::optional<uint64_t> named_;  // the last version with a name, if this is no more on the way of names
  uint32_t count_ = 0;
  std::array<uint32_t, kTokens> tokens_ = {};  // `count_` of them, the last change's last
};

}  // namespace sortition::service
