// The Merkle tree of receipts (RFC 6962, section 2.1; docs/receipts-elsewhere.md): its root, and the path that shows
// one receipt in it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "service/receipt/record.h"

namespace sortition::service {

// Takes receipts in order and keeps none: memory is O(log leaves). Not thread-safe.
class ReceiptTree {
 public:
  // Adds the body of a receipt. `is_shown`: Path() is its path; of at most one leaf.
  void Add(std::string_view body, bool is_shown = false);

  uint64_t leaves() const { return leaves_; }
  // There is a leaf.
  ReceiptHash Root() const { return Join().root; }
  // Returns the hashes beside the way from the shown leaf to the root, the leaf's neighbour first.
  std::vector<ReceiptHash> Path() const { return Join().path; }

 private:
  // A whole subtree.
  struct Node {
    ReceiptHash hash = {};
    bool has_shown = false;
  };
  struct Joined {
    ReceiptHash root = {};
    std::vector<ReceiptHash> path;
  };

  // Joins neighbours, and appends to `path` the hash beside the one that has the shown leaf.
  static Node Above(const Node& left, const Node& right, std::vector<ReceiptHash>* path);
  // Joins the subtrees to the tree.
  Joined Join() const;

  uint64_t leaves_ = 0;
  std::vector<Node> subtrees_;     // from the left, each larger than the next: one for each bit of leaves_
  std::vector<ReceiptHash> path_;  // within its subtree
};

}  // namespace sortition::service
