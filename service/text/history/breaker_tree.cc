// Builds the automaton level by level.
#include "service/text/history/breaker_tree.h"

#include <algorithm>

namespace sortition::service {

BreakerTree::BreakerTree(std::span<const std::vector<uint32_t>> breakers) {
  // Breakers in the order of their tokens from the last to the first.
  std::vector<std::span<const uint32_t>> sorted(breakers.begin(), breakers.end());
  std::ranges::sort(sorted, [](std::span<const uint32_t> a, std::span<const uint32_t> b) {
    return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  });
  // By node: the breakers below it, which are adjacent.
  struct Below {
    size_t begin = 0;
    size_t end = 0;
    uint32_t depth = 0;
  };
  std::vector<Below> below = {{0, sorted.size(), 0}};
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    auto [at, end, depth] = below[node];
    for (; at < end && sorted[at].size() == depth; ++at) nodes_[node].longest = depth;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (at < end) {
      const auto token_of = [&](size_t breaker) { return sorted[breaker][sorted[breaker].size() - 1 - depth]; };
      const uint32_t token = token_of(at);
      const size_t begin = at;
      while (at < end && token_of(at) == token) ++at;
      Node& child = nodes_.emplace_back();
      child.token = token;
      below.push_back({begin, at, depth + 1});
      ++nodes_[node].children;
    }
  }
  // A node's parent and its shorter ends come before it.
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    for (uint32_t i = 0; i < nodes_[node].children; ++i) {
      Node& child = nodes_[nodes_[node].first_child + i];
      if (node != kStart) child.shorter = Next(nodes_[node].shorter, child.token);
      if (child.longest == 0) child.longest = nodes_[child.shorter].longest;
    }
  }
}

uint32_t BreakerTree::ChildOf(uint32_t node, uint32_t token) const {
  const std::span children(nodes_.data() + nodes_[node].first_child, nodes_[node].children);
  const auto child = std::ranges::lower_bound(children, token, {}, &Node::token);
  return child == children.end() || child->token != token ? kStart : static_cast<uint32_t>(&*child - nodes_.data());
}

uint32_t BreakerTree::Next(uint32_t state, uint32_t token) const {
  for (;; state = nodes_[state].shorter) {
    const uint32_t child = ChildOf(state, token);
    if (child != kStart || state == kStart) return child;
  }
}

}  // namespace sortition::service
