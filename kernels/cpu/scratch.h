// Working memory of one thread that samples rows. It grows to the largest vocabulary so far, and is reused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/array.h"
#include "kernels/cpu/candidate.h"
#include "kernels/cpu/racers.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// RowView (row_view.h) and Kept (candidate.h) refer to the memory here. Not thread-safe. No content survives from one
// row to the next.
struct Scratch {
  Array<std::byte> numbers;     // the tensor without NaNs
  Array<std::byte> last_group;  // its last group, filled up
  Array<uint32_t> raw_maxima;   // largest key of each group, unchanged logits
  Array<uint64_t> copied;       // LazyCopy's

  Array<uint64_t> sent_words;  // one word a group, one bit a token
  Array<uint64_t> mask;        // likewise
  Array<uint32_t> first_edit;  // of each group, its first edit
  Array<LogitEdit> some_edits;
  Array<uint32_t> changed_maxima;  // the same as raw_maxima after masks and edits
  Array<uint32_t> reached;         // RowView's, if it is not `maxima`
  Array<Candidate> edited;
  Array<Candidate> listed;     // RowView's
  Array<uint32_t> moved_keys;  // Edited's

  Array<uint32_t> folded;    // maxima of maxima
  Array<uint32_t> groups;    // the groups that a stage reads
  Array<Candidate> kept;     // the kept tokens, if they are listed
  Array<Candidate> leading;  // the first tokens of a distribution, or a sample
  Array<Candidate> bounds;   // a key of each group, while these are weighed
  Array<Candidate> least;    // the tokens that a filter has to keep
  Array<Candidate> requested;
  Array<uint64_t> weights;
  Array<uint64_t> prefix_weights;  // of a race's winner and the tokens before it
  Array<uint32_t> distances;
  Array<Candidate> nearest;
  Array<uint64_t> known_words;  // of a compact row
  GroupRacers group_racers;
  TokenRacers token_racers;
  Array<uint32_t> survivors;
};

}  // namespace sortition::kernels::cpu
