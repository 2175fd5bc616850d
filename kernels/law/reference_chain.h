// A chain's stages as the law states them: slow and plain, over a sorted list of all tokens.
#pragma once

#include <vector>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

class ReferenceChain {
 public:
  // `tokens`: the live ones with their canonical bits after the changes, in order; one at least.
  ReferenceChain(const kernels::RowRequest& request, std::vector<kernels::TokenBits> tokens);

  void Run();

  // What Run left; bits are those before the chain.
  const std::vector<kernels::TokenBits>& kept() const { return kept_; }
  const Shape& shape() const { return shape_; }
  u32 temperature() const { return temperature_; }  // RowOutput's

  // RowOutput::sampler_state after the token; as it was where the token is not kept.
  u64 NextState(u32 token) const;

 private:
  struct Moments {
    u64 sum = 0;
    u64 moment = 0;
    u64 square = 0;
  };

  u32 DistanceOf(const kernels::TokenBits& token) const;
  Moments MomentsOfKept() const;
  void Apply(const kernels::Stage& stage);
  // Keep the tokens whose distance lies between these, dead ones never.
  void KeepWithin(u32 bound) { KeepBetween(0, bound); }
  void KeepBetween(u64 low, u64 high);
  void KeepFirst(size_t count);
  void KeepTopP(u32 p);
  void KeepTypical(u32 p);
  void KeepNSigma(u32 log_n);
  void KeepTopH(u32 h);
  void DropTop(u32 chance, u32 threshold);
  void KeepMirostat1(u32 m);
  // The scale always is that of the first kept token.
  void Rescale() { shape_.scale = ScaleFrom(kept_[0].bits, shape_); }

  const kernels::RowRequest& request_;
  std::vector<kernels::TokenBits> kept_;
  Shape shape_;
  u32 temperature_ = 0;
};

}  // namespace sortition::law
