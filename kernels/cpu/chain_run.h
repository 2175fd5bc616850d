// Runs a chain's stages (kernels/law/functions/stage.inc) over a row. The kept tokens are listed as soon as they are
// few.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// The stages' effect on a row. The kept tokens are a prefix of row(), whose first tokens may have been masked.
class Chain {
 public:
  // `row` is the request's after its edits. Lists lie in `scratch`.
  Chain(const Kernels& kernels, const RowRequest& request, const RowView& row, Scratch* scratch);

  Chain(const Chain&) = delete;  // scale() refers to shape()
  Chain& operator=(const Chain&) = delete;

  void Run();

  const RowView& row() const { return row_; }
  const law::Shape& shape() const { return shape_; }
  const RowScale& scale() const { return scale_; }
  Kept kept() const;

  // Returns RowOutput::sampler_state after the draw of a kept token; 0 if the chain carries no state.
  uint64_t NextState(Candidate token) const;

 private:
  void Apply(const law::StageWords& stage);
  void Cut(const law::StageWords& stage);  // without LeastOfFirst
  Moments MomentsOfKept(MomentsWanted wanted) const;
  // The sums that the stage needs; not kSumLevels and kSumFallOff.
  law::StageSums SumsOfKept(const law::StageWords& stage) const;
  uint64_t SumOfKept() const { return MomentsOfKept(MomentsWanted::kSum).sum; }
  // Returns each candidate's distance, in scratch_->distances. For a dead or weightless candidate the distance may be
  // wrong, but is dead or weightless too.
  const uint32_t* Distances(std::span<const Candidate> candidates);
  const uint32_t* ExactDistances(std::span<const Candidate> candidates);  // also exact for dead and weightless ones

  void KeepNotAfter(Candidate last);
  void KeepFrom(uint32_t floor) { KeepNotAfter(Candidate::Of(floor, ~0u)); }
  uint32_t FloorWithin(law::Bound bound) const;  // the smallest key that is kept
  void KeepFirst(uint32_t count);
  void KeepMass(uint32_t p);
  void KeepNearest(const law::StageWords& stage);
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
  uint64_t sum_ = 0;  // sum of weights after the last stage, if NextState needs it
  bool is_listed_ = false;
  std::span<Candidate> list_;   // if is_listed_
  Candidate last_ = kLastLive;  // otherwise
};

}  // namespace sortition::kernels::cpu
