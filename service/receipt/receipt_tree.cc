// Subtrees of equal size are joined as leaves come, as a binary counter carries.
#include "service/receipt/receipt_tree.h"

#include <string>

#include "kernels/check.h"

namespace sortition::service {
namespace {

// A leaf's hash can be no inner node's.
constexpr char kLeaf = 0;
constexpr char kInner = 1;

std::string_view BytesOf(const ReceiptHash& hash) { return {reinterpret_cast<const char*>(hash.data()), hash.size()}; }

}  // namespace

ReceiptTree::Node ReceiptTree::Above(const Node& left, const Node& right, std::vector<ReceiptHash>* path) {
  if (left.has_shown) path->push_back(right.hash);
  if (right.has_shown) path->push_back(left.hash);
  std::string bytes(1, kInner);
  bytes.append(BytesOf(left.hash)).append(BytesOf(right.hash));
  return {HashBytes(bytes), left.has_shown || right.has_shown};
}

void ReceiptTree::Add(std::string_view body, bool is_shown) {
  Node node = {HashBytes(std::string(1, kLeaf).append(body)), is_shown};
  for (uint64_t carry = leaves_; (carry & 1) != 0; carry >>= 1) {
    node = Above(subtrees_.back(), node, &path_);
    subtrees_.pop_back();
  }
  subtrees_.push_back(node);
  ++leaves_;
}

ReceiptTree::Joined ReceiptTree::Join() const {
  SORTITION_CHECK(leaves_ > 0);
  Joined joined = {{}, path_};
  Node node = subtrees_.back();
  for (size_t i = subtrees_.size() - 1; i > 0; --i) node = Above(subtrees_[i - 1], node, &joined.path);
  joined.root = node.hash;
  return joined;
}

}  // namespace sortition::service
