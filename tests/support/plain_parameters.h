// A sequence's parameters as the law's reference wants them, without the service's validation.
#pragma once

#include "kernels/law/parameters.h"
#include "kernels/row.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

law::SamplingParameters PlainSamplers(const v1::SamplingParameters& parameters);
// Compiles parameters, with the requested answers.
kernels::RowParameters PlainRowParameters(const v1::SamplingParameters& parameters);

}  // namespace sortition::testing
