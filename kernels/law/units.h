// Options as the law's integers, for the compilation of single options and of chains. Host only.
#pragma once

#include <cstdint>

#include "kernels/law/law.h"

namespace sortition::law {

// round half even of value * 2^bits; value >= 0, below 2^63.
uint64_t RoundedUnits(double value, int bits);

// Units of a probability: p * 2^32 rounded half to even, at least 1; 0 (off) if that is 2^32.
uint32_t TopPUnits(float p);

// Constants of a temperature above 0.
Temperature TemperatureConstants(double t);

}  // namespace sortition::law
