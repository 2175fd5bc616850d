// The trie of contexts.
#include "service/text/history/context_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/hash/hash.h"
#include "kernels/check.h"
#include "kernels/row.h"

namespace sortition::service {

ContextIndex::Followers& ContextIndex::Followers::operator=(const Followers& other) {
  list_ = other.list_;
  places_ = other.places_ ? std::make_unique<Places>(*other.places_) : nullptr;
  return *this;
}

ContextIndex::Followers::List::iterator ContextIndex::Followers::Find(uint32_t token) {
  if (!places_) return std::ranges::find(list_, token, &Follower::token);
  const auto place = places_->find(token);
  return place == places_->end() ? list_.end() : list_.begin() + place->second;
}

void ContextIndex::Followers::Add(uint32_t token, uint32_t position) {
  if (const auto known = Find(token); known != list_.end()) {
    ++known->count;
    return;
  }
  list_.push_back({token, 1, position});
  if (places_) {
    places_->emplace(token, list_.size() - 1);
  } else if (list_.size() > kFew) {
    places_ = std::make_unique<Places>();
    for (size_t i = 0; i < list_.size(); ++i) places_->emplace(list_[i].token, i);
  }
}

void ContextIndex::Followers::Remove(uint32_t token) {
  const auto known = Find(token);
  SORTITION_CHECK(known != list_.end());
  if (--known->count != 0) return;
  if (places_) {
    (*places_)[list_.back().token] = static_cast<uint32_t>(known - list_.begin());
    places_->erase(token);
  }
  *known = list_.back();
  list_.pop_back();
  if (list_.size() <= kFew / 2) places_ = nullptr;
}

void ContextIndex::Followers::Clear() {
  list_.clear();
  list_.shrink_to_fit();
  places_ = nullptr;
}

uint64_t ContextIndex::Followers::bytes() const {
  const uint64_t outside = list_.capacity() > List().capacity() ? list_.capacity() * sizeof(Follower) : 0;
  return outside + (places_ ? sizeof(Places) + places_->capacity() * (sizeof(Places::value_type) + 1) : 0);
}

uint32_t ContextIndex::Nodes::Add() {
  if (blocks_.back().size() == kBlock) blocks_.emplace_back().reserve(kBlock);
  blocks_.back().emplace_back();
  return static_cast<uint32_t>((blocks_.size() - 1) * kBlock + blocks_.back().size() - 1);
}

uint64_t ContextIndex::Nodes::bytes() const {
  const uint64_t nodes = (blocks_.size() - 1) * kBlock + blocks_.back().capacity();
  return blocks_.capacity() * sizeof(blocks_[0]) + nodes * sizeof(Node);
}

uint32_t ContextIndex::Children::Find(uint64_t edge) const {
  const Table& table = tables_[TableOf(edge)];
  const auto found = table.find(edge);
  return found == table.end() ? kNone : found->second;
}

void ContextIndex::Children::Set(uint64_t edge, uint32_t node) {
  Table& table = tables_[TableOf(edge)];
  slots_ -= table.capacity();
  edges_ += table.insert_or_assign(edge, node).second;
  slots_ += table.capacity();
  if (edges_ > tables_.size() * kEdges) Split();
}

void ContextIndex::Children::Erase(uint64_t edge) { edges_ -= tables_[TableOf(edge)].erase(edge); }

uint64_t ContextIndex::Children::bytes() const {
  return tables_.capacity() * sizeof(Table) + slots_ * (sizeof(Table::value_type) + 1);  // and whether it is used
}

// The tables from 2^n on are those that were split from the tables from 0 on.
size_t ContextIndex::Children::TableOf(uint64_t edge) const {
  const size_t all = std::bit_ceil(tables_.size());
  const size_t table = (absl::HashOf(edge) >> 32) & (all - 1);  // a table itself uses the other bits
  return table < tables_.size() ? table : table - all / 2;
}

void ContextIndex::Children::Split() {
  const size_t from = tables_.size() - std::bit_floor(tables_.size());
  const Table both = std::exchange(tables_[from], Table());
  tables_.emplace_back();
  for (const size_t half : {from, tables_.size() - 1}) tables_[half].reserve(2 * kEdges);
  for (const auto& [edge, node] : both) tables_[TableOf(edge)].emplace(edge, node);
  slots_ += tables_[from].capacity() + tables_.back().capacity() - both.capacity();
}

ContextIndex::ContextIndex(uint32_t least, uint32_t depth)
    : least_(least), depth_(depth), root_edge_(std::clamp(least, 1u, 2u)) {
  SORTITION_CHECK(least <= depth);
}

uint64_t ContextIndex::Edge(uint32_t node, const TokenLog& log, uint32_t position) const {
  const uint32_t depth = nodes_[node].depth;
  const uint64_t next = At(log, position, depth);
  static_assert(kernels::kMaxVocabulary < uint32_t{1} << 31);
  if (EdgeTokens(node) == 2) return uint64_t{1} << 63 | uint64_t{At(log, position, depth + 1)} << 32 | next;
  return uint64_t{node} << 32 | next;
}

void ContextIndex::Descend(const TokenLog& log, uint32_t position, uint32_t end, Walk* walk) const {
  walk->path.clear();
  walk->path.push_back(kRoot);
  walk->partial = kNone;
  walk->matched = 0;
  while (walk->matched < depth_) {
    const uint32_t number = children_.Find(Edge(walk->path.back(), log, position));
    if (number == kNone) return;
    const Node& child = nodes_[number];
    if (child.position >= end) return;
    walk->matched += EdgeTokens(walk->path.back());
    const uint32_t left = child.depth - walk->matched;
    const uint32_t more = log.CommonEnd(position - walk->matched, child.position - walk->matched, left);
    walk->matched += more;
    if (more < left) {
      walk->partial = number;
      return;
    }
    walk->path.push_back(number);
  }
}

template <typename Use>
void ContextIndex::UseFollowers(const TokenLog& log, uint32_t position, uint32_t end, Use use) const {
  if (empty()) return;
  Walk walk;
  Descend(log, position, end, &walk);
  if (walk.partial != kNone && walk.matched >= least_) use(nodes_[walk.partial].followers, walk.matched);
  for (size_t i = walk.path.size(); i-- > 0 && nodes_[walk.path[i]].depth >= least_;) {
    use(nodes_[walk.path[i]].followers, nodes_[walk.path[i]].depth);
  }
}

void ContextIndex::Find(const TokenLog& log, uint32_t position, AllFound* found, uint32_t end) const {
  UseFollowers(log, position, end, [&](const Followers& followers, uint32_t length) {
    if (found->empty()) found->reserve(followers.size());
    for (const Follower& follower : followers) {
      if (follower.oldest < end) found->push_back({follower.token, length});
    }
  });
}

uint64_t ContextIndex::Looks(const TokenLog& log, uint32_t position, uint32_t end) const {
  uint64_t looks = 0;
  UseFollowers(log, position, end, [&](const Followers& followers, uint32_t) { looks += followers.size(); });
  return looks;
}

bool ContextIndex::Finds(const TokenLog& log, uint32_t position, uint32_t end) const {
  if (empty() || first_ >= end) return false;
  Walk walk;
  Descend(log, position, end, &walk);
  return walk.matched >= least_;
}

void ContextIndex::AddNewest(const TokenLog& log, uint32_t position) {
  if (empty()) first_ = position;
  SORTITION_CHECK(position >= depth_ && position == first_ + links_.size());
  Descend(log, position, kNone, &walk_);
  const uint32_t leaf = LeafFor(log, position);
  Node& node = nodes_[leaf];
  links_.push_back({kNone, node.newest});
  if (node.newest != kNone) LinkOf(node.newest).newer = position;
  node.newest = position;
  if (node.position == kNone) node.position = position;
  CountFollower(log, position, +1);
}

void ContextIndex::AddOldest(const TokenLog& log, uint32_t position) {
  if (empty()) return AddNewest(log, position);
  SORTITION_CHECK(position >= depth_ && position + 1 == first_);
  Descend(log, position, kNone, &walk_);
  const uint32_t leaf = LeafFor(log, position);
  first_ = position;
  Node& node = nodes_[leaf];
  links_.push_front({node.position == position ? kNone : node.position, kNone});
  if (node.newest == kNone) {
    node.newest = position;
  } else {
    LinkOf(node.position).older = position;
  }
  node.position = position;
  CountFollower(log, position, +1);
}

uint32_t ContextIndex::LeafFor(const TokenLog& log, uint32_t position) {
  if (walk_.matched == depth_) return walk_.path.back();
  if (walk_.partial != kNone) walk_.path.push_back(Split(log, walk_.partial, walk_.matched));
  const uint32_t parent = walk_.path.back();
  const uint32_t leaf = NewNode();
  nodes_[leaf].depth = depth_;
  nodes_[leaf].position = position;
  LinkChild(parent, leaf);
  children_.Set(Edge(parent, log, position), leaf);
  walk_.path.push_back(leaf);
  return leaf;
}

// Inserts a node of `depth` between `child` and its parent.
uint32_t ContextIndex::Split(const TokenLog& log, uint32_t child, uint32_t depth) {
  const uint32_t middle = NewNode();
  const uint32_t parent = nodes_[child].parent;
  const uint32_t position = nodes_[child].position;
  nodes_[middle].depth = depth;
  nodes_[middle].position = position;
  if (depth >= least_) nodes_[middle].followers = nodes_[child].followers;
  follower_bytes_ += nodes_[middle].followers.bytes();
  UnlinkChild(child);
  LinkChild(parent, middle);
  LinkChild(middle, child);
  children_.Set(Edge(parent, log, position), middle);
  children_.Set(Edge(middle, log, position), child);
  return middle;
}

// Counts the follower of the position just descended to, in every node of its path.
void ContextIndex::CountFollower(const TokenLog& log, uint32_t position, int32_t change) {
  const uint32_t token = log.at(position);
  for (size_t i = walk_.path.size(); i-- > 0 && nodes_[walk_.path[i]].depth >= least_;) {
    Followers& followers = nodes_[walk_.path[i]].followers;
    follower_bytes_ -= followers.bytes();
    change > 0 ? followers.Add(token, position) : followers.Remove(token);
    follower_bytes_ += followers.bytes();
  }
}

void ContextIndex::RemoveNewest(const TokenLog& log) {
  Remove(log, first_ + static_cast<uint32_t>(links_.size()) - 1);
  links_.pop_back();
}

void ContextIndex::RemoveOldest(const TokenLog& log) {
  Remove(log, first_);
  links_.pop_front();
  ++first_;
}

void ContextIndex::Remove(const TokenLog& log, uint32_t position) {
  Descend(log, position, kNone, &walk_);
  SORTITION_CHECK(walk_.matched == depth_);
  CountFollower(log, position, -1);
  const uint32_t leaf = walk_.path.back();
  const Link link = LinkOf(position);
  if (link.older != kNone) LinkOf(link.older).newer = link.newer;
  if (link.newer != kNone) LinkOf(link.newer).older = link.older;
  if (nodes_[leaf].newest == position) nodes_[leaf].newest = link.older;
  if (nodes_[leaf].position == position) nodes_[leaf].position = link.newer;
  const uint32_t left = nodes_[leaf].newest == kNone ? Prune(log, leaf, position) : nodes_[leaf].position;
  for (const uint32_t node : walk_.path) {
    if (nodes_[node].position == position) nodes_[node].position = left;
  }
}

uint32_t ContextIndex::Prune(const TokenLog& log, uint32_t leaf, uint32_t position) {
  if (leaf == kRoot) return kNone;
  const uint32_t parent = nodes_[leaf].parent;
  children_.Erase(Edge(parent, log, position));
  UnlinkChild(leaf);
  FreeNode(leaf);
  walk_.path.pop_back();
  const uint32_t only = nodes_[parent].first_child;
  if (only == kNone) return kNone;  // the root's last child
  const uint32_t left = nodes_[only].position;
  if (parent == kRoot || nodes_[only].next != kNone) return left;
  const uint32_t above = nodes_[parent].parent;
  children_.Erase(Edge(parent, log, left));
  children_.Set(Edge(above, log, left), only);
  UnlinkChild(only);
  UnlinkChild(parent);
  LinkChild(above, only);
  walk_.path.pop_back();
  FreeNode(parent);
  return left;
}

uint32_t ContextIndex::NewNode() {
  if (free_.empty()) return nodes_.Add();
  const uint32_t node = free_.back();
  free_.pop_back();
  return node;
}

void ContextIndex::FreeNode(uint32_t node) {
  Node& freed = nodes_[node];
  follower_bytes_ -= freed.followers.bytes();
  freed.followers.Clear();
  freed.depth = 0;
  freed.position = freed.newest = freed.parent = freed.first_child = freed.next = freed.previous = kNone;
  free_.push_back(node);
}

void ContextIndex::LinkChild(uint32_t parent, uint32_t child) {
  const uint32_t first = nodes_[parent].first_child;
  nodes_[child].parent = parent;
  nodes_[child].previous = kNone;
  nodes_[child].next = first;
  if (first != kNone) nodes_[first].previous = child;
  nodes_[parent].first_child = child;
}

void ContextIndex::UnlinkChild(uint32_t child) {
  const Node& node = nodes_[child];
  if (node.next != kNone) nodes_[node.next].previous = node.previous;
  if (node.previous != kNone) {
    nodes_[node.previous].next = node.next;
  } else {
    nodes_[node.parent].first_child = node.next;
  }
}

uint64_t ContextIndex::bytes() const {
  return nodes_.bytes() + free_.capacity() * sizeof(uint32_t) + children_.bytes() + links_.size() * sizeof(Link) +
         follower_bytes_;
}

}  // namespace sortition::service
