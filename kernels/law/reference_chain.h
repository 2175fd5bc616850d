// A chain's stages as the law states them: slow and plain, over a sorted list of all tokens.
#pragma once

#include <vector>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

class ReferenceChain {
 public:
  // Takes the live tokens, at least one, in order, with their canonical bits after the changes.
  ReferenceChain(const kernels::RowRequest& request, std::vector<kernels::TokenBits> tokens);

  void Run();

  // The tokens that Run kept, with their bits before the chain.
  const std::vector<kernels::TokenBits>& kept() const { return kept_; }
  const Shape& shape() const { return shape_; }

  // RowOutput::sampler_state after the token; the state before it if the token is not kept.
  u64 NextState(u32 token) const;

 private:
  void Apply(const StageWords& stage);
  StageSums SumsOfKept(const StageWords& stage) const;
  u32 DistanceOf(const kernels::TokenBits& token) const;
  u64 WeightOf(const kernels::TokenBits& token) const { return Weight(DistanceOf(token)); }

  template <typename Goes>
  void Drop(Goes goes);
  void KeepFirst(size_t count);
  void KeepWithin(Bound bound);
  void KeepDepth(Bound bound);
  void KeepMass(Threshold threshold);
  void KeepNearest(u32 mean, Threshold threshold);
  void KeepTerms(const StageWords& stage);
  void DropHead(Bound bound);

  const kernels::RowRequest& request_;
  std::vector<kernels::TokenBits> kept_;
  Shape shape_;  // its scale is that of the first kept token
};

}  // namespace sortition::law
