// A chain's stages as the law states them: slow and plain, over a sorted list of tokens. The list has all tokens of the
// row, or a compact row's first tokens.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

// Sums of weights at one temperature, as far as a statement tells them.
struct RestWeights {
  std::optional<u64> all;   // the sum over all tokens, listed or not
  std::optional<u64> most;  // the rest's sum or more
};

// The tokens of a row that are not listed. All of them come after every listed one.
struct Rest {
  u32 bits = 0;      // no token of the rest has a larger logit
  u32 tokens = 0;    // it has no more than these
  RestWeights unit;  // at temperature 1
  RestWeights own;   // at the row's own temperature

  // Called after a stage that may drop tokens: the sums are not the kept tokens'.
  void ForgetSums() { unit = own = {}; }
};

// Returns what is stated at this temperature; the logits are those after the changes.
RestWeights WeightsOfRest(const kernels::RowParameters& parameters, const Temperature& temperature, const Rest& rest);

// The row's stages: its chain, or its plain filters as one.
std::vector<StageWords> StagesOf(const kernels::RowParameters& parameters);

class ReferenceChain {
 public:
  // Takes the live tokens, at least one, in order, with their canonical bits after the changes. `rest` is absent if
  // they are all. `request` must outlive it.
  ReferenceChain(const kernels::RowRequest& request, std::vector<kernels::TokenBits> tokens, std::optional<Rest> rest);

  // Returns the reason if the rest leaves a stage undecided.
  std::optional<kernels::RowRequiredReason> Run();

  // The tokens that Run kept, with their bits before the chain. If keeps_rest(), the unlisted tokens are kept too.
  const std::vector<kernels::TokenBits>& kept() const { return kept_; }
  bool keeps_rest() const { return rest_.has_value(); }
  const Shape& shape() const { return shape_; }

  // RowOutput::sampler_state after the token; the state before it if the token is not kept. Not for a kept rest.
  u64 NextState(u32 token) const;

 private:
  using Undecided = std::optional<kernels::RowRequiredReason>;

  Undecided Apply(const StageWords& stage);
  Undecided Cut(const StageWords& stage);  // without LeastCount
  Undecided SumKept(const StageWords& stage, StageSums* sums) const;
  u32 DistanceAt(u32 bits) const { return Distance(ShapedBits(bits, shape_), shape_.scale); }
  u32 DistanceOf(const kernels::TokenBits& token) const { return DistanceAt(token.bits); }
  u64 WeightOf(const kernels::TokenBits& token) const { return Weight(DistanceOf(token)); }

  Undecided KeepFirst(size_t count);
  template <typename IsKept>
  void KeepWhile(IsKept is_kept);
  void KeepDepth(Bound bound);
  Undecided KeepMass(Threshold threshold);
  u64 MostOfRest() const;
  // Keeps by bounds of an unknown sum. Returns `reason` if they leave it open.
  Undecided KeepMassWithin(const StageWords& stage, Undecided reason);
  void KeepNearest(u32 mean, Threshold threshold, u32 least);
  Undecided KeepTerms(const StageWords& stage);
  Undecided KeepBeforeCliff(const StageWords& stage);
  Undecided DropHead(Bound bound, u32 least);

  const kernels::RowRequest& request_;
  const std::vector<StageWords> stages_;
  std::vector<kernels::TokenBits> kept_;
  std::optional<Rest> rest_;  // while it may be kept
  Shape shape_;               // its scale is the first kept token's
};

}  // namespace sortition::law
