// The price list of work that a stream's thread does for a message, and a message's bill. What a message asks for is
// priced before it is done: the thread does it in pieces between which it serves other streams, or refuses it.
// `./dev costs` compares the prices with the time that messages take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "service/limits.h"
#include "service/refusal.h"

namespace sortition::service {

// Prices in nanoseconds of one core.
namespace price {

inline constexpr uint64_t kRow = 3000;            // a row, without all that follows
inline constexpr uint64_t kPosition = 1500;       // one more position of it
inline constexpr uint64_t kCopiedEdit = 10;       // a logit's edit that is copied, or looked at
inline constexpr uint64_t kFoundEdit = 25;        // one that is found in the history, or counted anew
inline constexpr uint64_t kListedToken = 60;      // a token of a row's lists: checked and sorted
inline constexpr uint64_t kComparedToken = 4;     // a token of two sorted lists that are compared
inline constexpr uint64_t kSoughtString = 10;     // a bad word or banned phrase that is sought at a text's end
inline constexpr uint64_t kSoughtTokens = 10;     // sixteen tokens of it, which may all be compared
inline constexpr uint64_t kMaskWord = 2;          // 32 tokens of a packed mask: copied, and hashed
inline constexpr uint64_t kCopiedWord = 2;        // 4 bytes of draft probabilities in a region: copied
inline constexpr uint64_t kSearchStep = 6;        // one of an allowed token's among the edits of a compact row
inline constexpr uint64_t kCompactToken = 20;     // a token of a compact row: read, judged and decided on
inline constexpr uint64_t kMergedToken = 45;      // one of a shard, which is merged with the others before that
inline constexpr uint64_t kParameterByte = 8;     // a byte of an open's parameters: checked, sorted and hashed
inline constexpr uint64_t kSortedString = 180;    // a phrase or breaker among them, or a bad word of several tokens
inline constexpr uint64_t kListedWord = 100;      // a bad word of one token
inline constexpr uint64_t kReceiptByte = 8;       // a byte of parameters that become the words of a receipt
inline constexpr uint64_t kSharedChunk = 16;      // 64 tokens of a history that a fork shares
inline constexpr uint64_t kNamedToken = 40;       // a token that ROW_REQUIRED names
inline constexpr uint64_t kReadByte = 6;          // a byte of a message that is read
inline constexpr uint64_t kReadPart = 30;         // a part of it (service/wire/wire_scan.h): made, and freed
inline constexpr uint64_t kFreedChunk = 16;       // 64 bytes of options and state that a close frees
inline constexpr uint64_t kShardAnswer = 2500;    // the answer of a row to one of its shards
inline constexpr uint64_t kAnswerByte = 2;        // a byte of memory of an answer that exists: copied and encoded
inline constexpr uint64_t kRewrittenToken = 100;  // a token cut off or appended, times RewriteTimes

}  // namespace price

// Work between two pauses.
inline constexpr uint64_t kPieceWork = 2'000'000;

// The work of one message, and what its answer may name without being asked. Not thread-safe.
class Bill {
 public:
  Bill() = default;
  // `bytes` of the message.
  explicit Bill(uint64_t bytes) : names_left_(bytes * kNamesPerByte) {}

  // Begins what the thread does before it serves others. It ends with the row in which it becomes full.
  void BeginPiece() { before_piece_ = spent_; }
  bool piece_is_full() const { return piece_work() >= kPieceWork; }
  uint64_t piece_work() const { return spent_ - before_piece_; }

  // Begins a part that is never interrupted, such as a row.
  void BeginRow() { row_left_ = kMaxPieceWork; }

  // Takes `work` of the row. Returns false if it is too much; then nothing is left of the row, since some of the work
  // may show only when it is done.
  bool Take(uint64_t work) {
    const uint64_t most = std::min(row_left_, left_);
    const bool suffices = work <= most;
    left_ -= std::min(work, most);
    spent_ += std::min(work, most);
    row_left_ = suffices ? row_left_ - work : 0;
    return suffices;
  }
  // Adds work that is done in any case, as its size is bounded otherwise.
  void Add(uint64_t work) { spent_ += work; }
  // Takes tokens that ROW_REQUIRED names. Returns false, and takes nothing, if the message is too short for them.
  bool TakeNames(uint64_t tokens) {
    if (tokens > names_left_) return false;
    names_left_ -= tokens;
    return true;
  }

  uint64_t spent() const { return spent_; }

  // Returns the refusal of a part for which Take has returned false.
  Refusal TooMuch(std::string field) const {
    if (left_ > 0) {
      return {Reason::kTooMany, std::move(field), Bounds::max_piece_work().Text(), "the row asks for more work"};
    }
    return {Reason::kOverloaded, std::move(field), Bounds::max_message_work().Text(),
            "rows before this one have taken it; send the row in another message", absl::Milliseconds(1)};
  }

 private:
  // An answer has at most 64 bytes for each byte of the message beyond what the message asks for.
  static constexpr uint64_t kNamesPerByte = 16;

  uint64_t names_left_ = kMaxRequiredTokens;
  uint64_t row_left_ = kMaxPieceWork;
  uint64_t left_ = kMaxMessageWork;
  uint64_t spent_ = 0;
  uint64_t before_piece_ = 0;
};

}  // namespace sortition::service
