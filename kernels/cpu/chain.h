// A chain's stages over a row. Most end in a bound on the distance, found from a few sums over what is kept; what is
// kept is listed as soon as it is short.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/kept.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// What is left of a row. The tokens kept are a prefix of `row`, from which a head may have been masked.
class Chain {
 public:
  // `row` is the request's after its changes. Lists lie in `scratch`.
  Chain(const Kernels& kernels, const RowRequest& request, const Row& row, Scratch* scratch);

  Chain(const Chain&) = delete;  // scale() refers to shape()
  Chain& operator=(const Chain&) = delete;

  void Run();

  const Row& row() const { return row_; }
  const law::Shape& shape() const { return shape_; }
  const RowScale& scale() const { return scale_; }
  uint32_t temperature() const { return temperature_; }  // RowOutput's
  Kept kept() const;

  // RowOutput::sampler_state after a kept token; 0 where the chain keeps none.
  uint64_t NextState(Candidate token) const;

 private:
  void Apply(const Stage& stage);
  Moments MomentsOfKept(MomentsWanted wanted) const;
  uint64_t SumOfKept() const { return MomentsOfKept(MomentsWanted::kSum).sum; }
  // Of each, in scratch_->distances; dead ones' have no meaning but that they are dead or weigh nothing.
  const uint32_t* Distances(std::span<const Candidate> candidates);

  void KeepNotAfter(Candidate last);
  void KeepWithin(uint32_t bound);
  void KeepFrom(uint32_t floor) { KeepNotAfter(Candidate::Of(floor, ~0u)); }
  void KeepFirst(uint32_t count);
  void KeepTopP(uint32_t p);
  void KeepTypical(uint32_t p);
  void KeepNSigma(uint32_t log_n);
  // Bounds of the sum of the squared deviations of kept tokens' levels from their mean; `scale` is at temperature 1.
  struct Deviations {
    uint32_t count;
    uint64_t least;
    uint64_t most;
  };
  Deviations SquaredDeviations(const RowScale& scale) const;
  Levels LevelsOfKept(const law::Shape& unit, const RowScale& scale) const;
  void KeepTopH(uint32_t h);
  void DropTop(uint32_t chance, uint32_t threshold);
  void DropBefore(Candidate first);
  void KeepMirostat1(uint32_t m);
  void SetTemperature(const law::Temperature& temperature);
  void Smooth(uint32_t square, uint32_t cube);
  void Adapt(uint32_t target);

  // Lists what is kept, however long the list.
  void List();
  void ListIfShort();
  void Rescale();
  uint32_t FirstBits() const { return law::KeyBits(row_.max_key); }

  const Kernels& kernels_;
  const RowRequest& request_;
  Scratch* const scratch_;
  Row row_;  // max_key is the first kept token's
  law::Shape shape_;
  RowScale scale_;
  uint32_t temperature_ = 0;
  uint64_t sum_ = 0;  // of what is kept at last, where mirostat needs it
  bool is_listed_ = false;
  std::span<Candidate> list_;   // if it is
  Candidate last_ = kLastLive;  // otherwise
};

}  // namespace sortition::kernels::cpu
