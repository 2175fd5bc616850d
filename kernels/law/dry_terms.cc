// Powers by repeated products.
#include "kernels/law/dry_terms.h"

#include "kernels/check.h"
#include "kernels/law/options.h"

namespace sortition::law {

std::vector<double> DryTerms(float multiplier, float base) {
  constexpr NumberOption kMultiplier = NumberNamed("dry.multiplier");
  constexpr NumberOption kBase = NumberNamed("dry.base");
  SORTITION_CHECK(multiplier != 0 && Accepts(kMultiplier, multiplier, kMultiplier.most.value));
  SORTITION_CHECK(Accepts(kBase, base, kBase.most.value));
  // Distance from the largest live logit to the largest masked one.
  constexpr double kMasksAny = 2 * double{kLogitLimit};
  std::vector<double> terms = {double(multiplier)};
  while (base != 1 && terms.back() < kMasksAny) terms.push_back(terms.back() * double(base));
  return terms;
}

}  // namespace sortition::law
