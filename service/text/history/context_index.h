// Index of a history. It finds the tokens that followed earlier occurrences of the last few tokens.
//
// A position's context is the `depth` tokens before it; its follower is the token at it. The contexts, read backwards,
// are the leaves of a compressed trie, and each node counts the followers of all positions below it. So a walk down
// from the root finds the followers of a context of any length, in time proportional to `depth` plus the number found,
// however long the history is. An edge from the root has two tokens, if no shorter contexts are looked for: then most
// walks end at once, for most pairs of tokens are new.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "service/text/history/token_log.h"

namespace sortition::service {

// Not thread-safe. Positions are added and removed at both ends, as histories grow and are cut and windows move over
// them. Every call must get the log of the same history, with all positions of the index and their contexts. Memory is
// O(positions).
class ContextIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Find looks for contexts of `least` to `depth` tokens.
  ContextIndex(uint32_t least, uint32_t depth);

  bool empty() const { return links_.empty(); }

  // Adds or removes a position at one end. An added `position` follows the newest or precedes the oldest; in an empty
  // index it may be any. The log has `depth` tokens before it.
  void AddNewest(const TokenLog& log, uint32_t position);
  void AddOldest(const TokenLog& log, uint32_t position);
  void RemoveNewest(const TokenLog& log);
  void RemoveOldest(const TokenLog& log);

  struct Found {
    uint32_t token = 0;
    uint32_t length = 0;  // length of the longest context that the token followed, `least` to `depth`
    bool operator==(const Found&) const = default;
  };
  using AllFound = absl::InlinedVector<Found, 16>;
  // Appends the tokens that followed the contexts that end before `position`, which has `depth` tokens before it. A
  // token is found with its longest context, and may be found again with shorter ones. With `end`, which needs an index
  // that no position was removed from or added to at its old end, finds only tokens before the position `end`: the log
  // may have others from there on than those of the index.
  void Find(const TokenLog& log, uint32_t position, AllFound* found, uint32_t end = kNone) const;

  // Returns the number of tokens that Find would look at.
  uint64_t Looks(const TokenLog& log, uint32_t position, uint32_t end = kNone) const;
  // Returns true if Find would find anything.
  bool Finds(const TokenLog& log, uint32_t position, uint32_t end = kNone) const;

  uint64_t bytes() const;  // without the object itself

 private:
  static constexpr uint32_t kRoot = 0;

  struct Follower {
    uint32_t token;
    uint32_t count;
    uint32_t oldest;  // the position at which it was added first
  };
  // The followers of a node, each token once, in no order. Adding and taking away cost O(1), copying O(followers).
  class Followers {
   public:
    Followers() = default;
    Followers(const Followers& other) { *this = other; }
    Followers(Followers&&) = default;
    Followers& operator=(const Followers& other);
    Followers& operator=(Followers&&) = default;

    void Add(uint32_t token, uint32_t position);
    void Remove(uint32_t token);
    void Clear();
    auto begin() const { return list_.begin(); }
    auto end() const { return list_.end(); }
    size_t size() const { return list_.size(); }
    uint64_t bytes() const;  // without the object itself

   private:
    static constexpr size_t kFew = 32;  // are searched one by one
    using List = absl::InlinedVector<Follower, 2>;
    using Places = absl::flat_hash_map<uint32_t, uint32_t>;

    List::iterator Find(uint32_t token);

    List list_;
    std::unique_ptr<Places> places_;  // in the list, by token; null if they are few
  };
  struct Node {
    uint32_t depth = 0;
    uint32_t position = kNone;  // a position below the node, which defines its context; in a leaf the oldest one
    uint32_t newest = kNone;    // in a leaf
    uint32_t parent = kNone;
    uint32_t first_child = kNone;
    uint32_t next = kNone;  // among its siblings
    uint32_t previous = kNone;
    Followers followers;  // empty if depth < least
  };
  // The nodes, from the root on, in blocks: one array of all would take a long pause to grow.
  class Nodes {
   public:
    Node& operator[](uint32_t node) { return blocks_[node / kBlock][node % kBlock]; }
    const Node& operator[](uint32_t node) const { return blocks_[node / kBlock][node % kBlock]; }
    // Adds a node and returns its number.
    uint32_t Add();
    uint64_t bytes() const;  // without the object itself

   private:
    static constexpr uint32_t kBlock = 4096;
    std::vector<std::vector<Node>> blocks_ = std::vector(1, std::vector<Node>(1));
  };
  // The nodes by the edge from their parent. It grows by one table of limited size at a time (linear hashing), since a
  // table of all edges would take a long pause to grow.
  class Children {
   public:
    uint32_t Find(uint64_t edge) const;  // kNone if there is none
    void Set(uint64_t edge, uint32_t node);
    void Erase(uint64_t edge);
    uint64_t bytes() const;  // without the object itself

   private:
    using Table = absl::flat_hash_map<uint64_t, uint32_t>;
    static constexpr size_t kEdges = 3500;  // of a table, on average; a table is split in two when it has twice this

    size_t TableOf(uint64_t edge) const;
    void Split();

    std::vector<Table> tables_ = std::vector<Table>(1);
    size_t edges_ = 0;
    uint64_t slots_ = 0;  // of all tables
  };
  // Links positions of equal contexts into a list.
  struct Link {
    uint32_t newer = kNone;
    uint32_t older = kNone;
  };
  // The nodes from the root whose contexts match a position's, and how many tokens of the next node match too.
  struct Walk {
    absl::InlinedVector<uint32_t, 16> path;
    uint32_t partial = kNone;  // the child with a context that differs at some token
    uint32_t matched = 0;      // tokens
  };

  // Returns token number `back` of the context before `position`; 0 is the last.
  static uint32_t At(const TokenLog& log, uint32_t position, uint32_t back) { return log.at(position - 1 - back); }

  // Returns the key of the edge that leaves `node` towards the context before `position`.
  uint64_t Edge(uint32_t node, const TokenLog& log, uint32_t position) const;
  // Returns how many tokens an edge from `node` has at least.
  uint32_t EdgeTokens(uint32_t node) const { return node == kRoot ? root_edge_ : 1; }

  Link& LinkOf(uint32_t position) { return links_[position - first_]; }
  // Nodes without a position before `end` are passed over.
  void Descend(const TokenLog& log, uint32_t position, uint32_t end, Walk* walk) const;
  // Calls `use` with the followers of each context that Find looks for, and its length; the longest first.
  template <typename Use>
  void UseFollowers(const TokenLog& log, uint32_t position, uint32_t end, Use use) const;
  // Returns the leaf of the position just descended to; makes it if it is absent.
  uint32_t LeafFor(const TokenLog& log, uint32_t position);
  uint32_t Split(const TokenLog& log, uint32_t child, uint32_t depth);
  void CountFollower(const TokenLog& log, uint32_t position, int32_t change);
  void Remove(const TokenLog& log, uint32_t position);
  // Removes the leaf of `position`, which is empty, and its parent if that has one child left. Takes the removed nodes
  // off walk_.path and returns a position that is left below its last node.
  uint32_t Prune(const TokenLog& log, uint32_t leaf, uint32_t position);

  uint32_t NewNode();
  void FreeNode(uint32_t node);
  void LinkChild(uint32_t parent, uint32_t child);
  void UnlinkChild(uint32_t child);

  const uint32_t least_;
  const uint32_t depth_;
  const uint32_t root_edge_;  // tokens, 1 or 2
  Nodes nodes_;
  std::vector<uint32_t> free_;
  Children children_;
  uint32_t first_ = 0;           // the oldest position
  std::deque<Link> links_;       // by position, from first_
  uint64_t follower_bytes_ = 0;  // bytes of followers stored outside their nodes
  Walk walk_;                    // walk of the position that is added or removed
};

}  // namespace sortition::service
