// Finds sequence breakers in a text that is read backwards, in one pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sortition::service {

// The automaton of Aho and Corasick over breakers that are read backwards. Immutable once made.
class BreakerTree {
 public:
  static constexpr uint32_t kStart = 0;

  BreakerTree() = default;
  // O(tokens of all breakers * log of their number).
  explicit BreakerTree(std::span<const std::vector<uint32_t>> breakers);
  bool operator==(const BreakerTree&) const = default;

  // Returns the state after one more token, the one before those that were read. A pass takes O(log breakers) a token.
  uint32_t Next(uint32_t state, uint32_t token) const;
  // Returns the length of the longest breaker that begins with the last token that was read; 0 if none does.
  uint32_t BreakerAt(uint32_t state) const { return nodes_[state].longest; }

  uint64_t bytes() const { return nodes_.capacity() * sizeof(Node); }  // without the object itself

 private:
  // A node is a string of tokens as they are read: the end of a breaker. The nodes are ordered by depth, and children
  // of one node by token.
  struct Node {
    uint32_t token = 0;  // the last one read
    uint32_t first_child = 0;
    uint32_t children = 0;
    uint32_t shorter = kStart;  // the longest node that the string ends with, besides itself
    uint32_t longest = 0;       // breaker among the string's ends
    bool operator==(const Node&) const = default;
  };

  // Returns the child, or kStart if there is none.
  uint32_t ChildOf(uint32_t node, uint32_t token) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace sortition::service
