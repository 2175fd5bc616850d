// Powers by repeated products.
#include "kernels/law/dry.h"

#include "kernels/check.h"
#include "kernels/law/parameters.h"

namespace sortition::law {

std::vector<double> DryTerms(float multiplier, float base) {
  SORTITION_CHECK(multiplier >= kMinDryMultiplier && multiplier <= kMaxDryMultiplier);
  SORTITION_CHECK(base == 1 || (base >= kMinDryBase && base <= kMaxDryBase));
  // From the largest live logit down to the largest that is masked.
  constexpr double kMasksAny = 2 * double{kLogitLimit};
  std::vector<double> terms = {double(multiplier)};
  while (base != 1 && terms.back() < kMasksAny) terms.push_back(terms.back() * double(base));
  return terms;
}

}  // namespace sortition::law
