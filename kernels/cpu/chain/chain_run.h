// Runs a chain's stages (kernels/law/functions/stage.inc) over a row. The kept tokens are listed as soon as they are
// few.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Certified cuts: from bounds on the sums that a stage needs follow a key from which on all tokens are kept, and one
// below which none is. The sums themselves are taken where a token that matters lies between. The way that decided:
enum class SumStep { kLeadingGroups, kRow };

// The stages' effect on a row. The kept tokens are a prefix of row(), whose first tokens may have been masked.
class Chain {
 public:
  // `row` is the request's after its edits. Lists lie in `scratch`.
  Chain(const Kernels& kernels, const RowRequest& request, const RowView& row, Scratch* scratch);

  Chain(const Chain&) = delete;  // scale() refers to shape()
  Chain& operator=(const Chain&) = delete;

  // If `draws_alone`, nothing but the drawn token depends on what is kept. Then kept() may have more tokens than the
  // last stage keeps, and Keeps says if the drawn one is kept.
  void Run(bool draws_alone);

  // True if `drawn`, the winner of the race among kept(), is kept by all stages. Otherwise kept() is smaller than it
  // was, and its race has another winner.
  bool Keeps(Candidate drawn);

  const RowView& row() const { return row_; }
  const law::Shape& shape() const { return shape_; }
  const RowScale& scale() const { return scale_; }
  Kept kept() const;

  // The step that decided last.
  SumStep step() const { return step_; }

  // Returns RowOutput::sampler_state after the draw of a kept token; 0 if the chain carries no state.
  uint64_t NextState(Candidate token) const;

 private:
  void Apply(const law::StageWords& stage);
  void Cut(const law::StageWords& stage);  // without LeastOfFirst
  Moments MomentsOfKept(MomentsWanted wanted) const;
  // The sums that the stage needs; not kSumLevels and kSumFallOff.
  law::StageSums SumsOfKept(const law::StageWords& stage) const;

  // True if bounds on the sums of the kept tokens may take less time than the sums.
  bool HasBounds() const;
  // Two ends of the sums that the stage needs: the smaller sum of weights with the larger other sum, and the larger one
  // with the smaller one. What the law makes of the sums lies between what it makes of the ends.
  struct Ends {
    law::StageSums small;
    law::StageSums large;
  };
  Ends EndsOfSums(const law::StageWords& stage, SumStep step);
  // Tokens with a key >= `sure` are kept, those with a key < `possible` are not.
  struct Edge {
    uint32_t possible = 0;
    uint32_t sure = 0;
  };
  Edge EdgeBetween(const law::StageWords& stage, const Ends& ends) const;
  bool HasTokens(const Edge& edge);  // that are possible, but not sure
  uint64_t SumOfKept() const { return MomentsOfKept(MomentsWanted::kSum).sum; }
  // Returns each candidate's distance, in scratch_->distances. For a dead or weightless candidate the distance may be
  // wrong, but is dead or weightless too.
  const uint32_t* Distances(std::span<const Candidate> candidates);
  const uint32_t* ExactDistances(std::span<const Candidate> candidates);  // also exact for dead and weightless ones

  void KeepNotAfter(Candidate last);
  void KeepFrom(uint32_t floor) { KeepNotAfter(Candidate::Of(floor, ~0u)); }
  uint32_t FloorWithin(law::Bound bound) const;  // the smallest key that is kept
  void KeepWithin(const law::StageWords& stage);
  void KeepFirst(uint32_t count);
  void KeepMass(uint32_t p);
  void KeepNearest(const law::StageWords& stage);
  // The tokens that are nearest to a mean distance.
  struct Nearest {
    Candidate first;
    Candidate last;
    bool has_head;  // tokens before the first
    law::Bound bound;
  };
  // Returns those whose weights reach the threshold, `least` at least. After SumStep::kLeadingGroups nothing, if they
  // differ for the two thresholds, or if many tokens would have to be looked at.
  std::optional<Nearest> FindNearest(uint32_t mean, law::Threshold lower, law::Threshold upper, uint32_t least);
  void KeepDepth(const law::StageWords& stage);
  // Bounds the sum of squares of the kept tokens' deviations from their mean level. `scale` is the unit shape's.
  struct Deviations {
    uint32_t count;
    uint64_t least;
    uint64_t most;
  };
  Deviations SquaredDeviations(const RowScale& scale) const;
  law::StageSums LevelsOfKept(const law::Shape& unit, const RowScale& scale) const;
  void KeepTerms(const law::StageWords& stage);
  void DropHead(const law::StageWords& stage);
  void DropBefore(Candidate first);
  // Returns the first `number` kept tokens, or all if there are fewer, in order, in `*memory`.
  std::span<Candidate> FirstInOrder(uint32_t number, Array<Candidate>* memory);
  void KeepByFallOff(const law::StageWords& stage);
  void KeepBeforeCliff(const law::StageWords& stage);
  void Reshape(const law::StageWords& stage);

  // Lists the kept tokens, however many.
  void List();
  void ListIfShort();
  void Rescale();  // after a change of the first kept token
  uint32_t FirstBits() const { return law::KeyBits(row_.max_key); }

  const Kernels& kernels_;
  const RowRequest& request_;
  Scratch* const scratch_;
  RowView row_;  // max_key is the first kept token's
  law::Shape shape_;
  RowScale scale_;
  bool draws_alone_ = false;  // Run's, if the stage is the last one, and a cut by a bound alone
  Edge edge_;                 // of the last stage, where kept() has all possible tokens
  SumStep step_ = SumStep::kRow;
  uint64_t sum_ = 0;  // sum of weights after the last stage, if NextState needs it
  bool is_listed_ = false;
  std::span<Candidate> list_;   // if is_listed_
  Candidate last_ = kLastLive;  // otherwise
};

}  // namespace sortition::kernels::cpu
