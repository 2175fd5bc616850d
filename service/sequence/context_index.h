// Which tokens followed the last few tokens of a history wherever those occurred before.
//
// Every position of the index stands for its context, the `depth` tokens before it, and its follower, the token that
// stands there. The contexts, read backwards, are the leaves of a compressed trie; each of its nodes counts the
// followers of all positions below it. So the followers of a context of any length are found by walking down from the
// root, in time of the order of `depth` and of what is found, however many positions there are.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "service/sequence/token_log.h"

namespace sortition::service {

// Not thread-safe. Positions come and go at both ends, as histories grow and are cut, and windows move over them. The
// log that a call is given is that of the same history every time, and has all positions of the index with their
// contexts. Memory is O(positions).
class ContextIndex {
 public:
  // Followers are asked for of contexts of `least` to `depth` tokens.
  ContextIndex(uint32_t least, uint32_t depth);

  bool empty() const { return links_.empty(); }

  // `position` is the one after the newest, or the one before the oldest, or any if the index is empty; there are
  // `depth` tokens before it.
  void AddNewest(const TokenLog& log, uint32_t position);
  void AddOldest(const TokenLog& log, uint32_t position);
  void RemoveNewest(const TokenLog& log);
  void RemoveOldest(const TokenLog& log);

  struct Found {
    uint32_t token = 0;
    uint32_t length = 0;  // of the longest context that it followed, `least` to `depth`
    bool operator==(const Found&) const = default;
  };
  // Adds what followed the contexts that end before `position`, which has `depth` tokens before it. A token is found
  // with its longest context, and may be found again with shorter ones.
  void Find(const TokenLog& log, uint32_t position, std::vector<Found>* found) const;

  uint64_t bytes() const;  // beside the object itself

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kRoot = 0;

  struct Follower {
    uint32_t token;
    uint32_t count;
  };
  using Followers = absl::InlinedVector<Follower, 2>;
  struct Node {
    uint32_t depth = 0;
    uint32_t position = kNone;  // one below it, which tells the tokens of its context; the oldest of a leaf
    uint32_t newest = kNone;    // of a leaf
    uint32_t parent = kNone;
    uint32_t first_child = kNone;
    uint32_t next = kNone;  // among its siblings
    uint32_t previous = kNone;
    Followers followers;  // if depth >= least
  };
  // Positions of equal contexts form a list.
  struct Link {
    uint32_t newer = kNone;
    uint32_t older = kNone;
  };
  // The nodes from the root on whose contexts are those of a position, and how far the next one's is, too.
  struct Walk {
    absl::InlinedVector<uint32_t, 16> path;
    uint32_t partial = kNone;  // the child whose context differs in the end
    uint32_t matched = 0;      // tokens
  };

  static uint64_t Edge(uint32_t node, uint32_t token) { return uint64_t{node} << 32 | token; }
  // Token number `back` of the context before `position`, 0 the last.
  static uint32_t At(const TokenLog& log, uint32_t position, uint32_t back) { return log.at(position - 1 - back); }

  Link& LinkOf(uint32_t position) { return links_[position - first_]; }
  void Descend(const TokenLog& log, uint32_t position, Walk* walk) const;
  // The leaf of the position just descended to, which is made if it is not there.
  uint32_t LeafFor(const TokenLog& log, uint32_t position);
  uint32_t Split(const TokenLog& log, uint32_t child, uint32_t depth);
  void CountFollower(const TokenLog& log, uint32_t position, int32_t change);
  void Remove(const TokenLog& log, uint32_t position);
  // Takes the leaf of `position` out, which is empty, and its parent if one child is left of it. Returns a position
  // that is left below the last of walk_.path, from which they are taken.
  uint32_t Prune(const TokenLog& log, uint32_t leaf, uint32_t position);

  static uint64_t BytesOf(const Followers& followers);
  uint32_t NewNode();
  void FreeNode(uint32_t node);
  void LinkChild(uint32_t parent, uint32_t child);
  void UnlinkChild(uint32_t child);

  const uint32_t least_;
  const uint32_t depth_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // by Edge(parent, the first token that is the child's own)
  uint32_t first_ = 0;                                // the oldest position
  std::deque<Link> links_;                            // by position, from first_ on
  uint64_t follower_bytes_ = 0;                       // of those that do not lie in their nodes
  Walk walk_;                                         // of the position that comes or goes
};

}  // namespace sortition::service
