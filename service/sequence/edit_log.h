// Edit log: the name and version of a sequence's logit edits, and the tokens whose edits changed last. A device that
// caches the edits uses it to find what to upload.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/row.h"

namespace sortition::service {

// Versions of one list of edits (kernels::EditOrigin). A plain value: the snapshot of a step has its own copy. Only one
// of all copies may be pushed to without Leave; otherwise different edits would have the same name. Not thread-safe.
class EditLog {
 public:
  // Number of changes that are remembered. A step changes one token, or two with a window of penalties; after drafts a
  // device is behind by as many more as were accepted.
  static constexpr uint32_t kTokens = 32;

  // Names no list.
  EditLog() = default;
  static EditLog OfNewList();

  // Records that the edit of `token` may have changed.
  void Push(uint32_t token);

  // Makes later pushes part of no version; origin() reports how many changes lie between them and the last version.
  void Leave() { named_ = named_.value_or(version_); }

  // Returns true if nothing was pushed between this log and `other`, one of which was copied from the other.
  bool SameEdits(const EditLog& other) const { return list_ == other.list_ && version_ == other.version_; }

  // Refers to this object.
  kernels::EditOrigin origin() const;

 private:
  uint64_t list_ = 0;
  uint64_t version_ = 0;           // counts pushes
  std::optional<uint64_t> named_;  // the last version, after Leave
  uint32_t count_ = 0;
  std::array<uint32_t, kTokens> tokens_ = {};  // the last `count_` changes, the latest last
};

}  // namespace sortition::service
