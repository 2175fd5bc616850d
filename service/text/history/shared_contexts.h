// Index of a whole history's contexts, of which forks share what they have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "service/text/history/context_index.h"
#include "service/text/history/token_log.h"

namespace sortition::service {

// Layers of positions: old ones, which forks share and leave as they are, and the newest ones, which it does not share.
// Each layer is more than twice as large as the next, so that there are few. Not thread-safe. Every call must get the
// log of the same history, with all of its tokens. Contexts are those of ContextIndex.
class SharedContexts {
 public:
  SharedContexts(uint32_t least, uint32_t depth);

  // Adds all tokens of `log` to an empty index.
  void Fill(const TokenLog& log);
  // Call after the last token of `log` was appended, and all tokens before it were.
  void Pushed(const TokenLog& log);
  // Call before the last of the first `length` tokens is cut off; later tokens are cut off already. Does nothing for a
  // token that was not Pushed.
  void Popping(const TokenLog& log, uint32_t length);

  // Appends what followed the contexts that end the log, as ContextIndex::Find does. Tokens at the log's end that were
  // not Pushed are looked at one by one.
  void Find(const TokenLog& log, ContextIndex::AllFound* found) const;

  // Returns the number of tokens that Find would look at in indexes.
  uint64_t Looks(const TokenLog& log) const;

  // Returns true if Find would find anything.
  bool Finds(const TokenLog& log) const;

  // Returns the index of the first `length` tokens of `log`, which were Pushed. Copies few positions. What it costs
  // beyond that is a share of the cost of the Pushed tokens.
  SharedContexts Fork(const TokenLog& log, uint32_t length);

  uint64_t bytes() const;  // without the object itself; shared layers count fully

 private:
  static constexpr uint32_t kMostCopied = 512;  // own positions

  struct Layer {
    std::shared_ptr<const ContextIndex> index;
    uint32_t begin = 0;
    uint32_t end = 0;  // positions of the index from here on are another history's
    uint32_t size() const { return end - begin; }
  };

  void Share(const TokenLog& log);
  void CutTo(const TokenLog& log, uint32_t end);

  uint32_t least_;
  uint32_t depth_;
  std::vector<Layer> layers_;          // from the first position on
  std::shared_ptr<ContextIndex> own_;  // of the positions from own_begin_ to end_
  uint32_t own_begin_;
  uint32_t end_;
};

}  // namespace sortition::service
