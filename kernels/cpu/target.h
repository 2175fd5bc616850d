// Targets: instruction sets that the vector kernels are compiled for. All give the same answers, at different speeds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/simd/kernels.h"

namespace sortition::kernels::cpu {

struct Target {
  std::string_view name;  // "avx512", "avx2", "sse4", "neon", "scalar"
  Kernels kernels;
};

// Everything here is thread-safe; targets live for ever.

// The targets that this machine can run, best first. Never empty: "scalar" runs everywhere.
const std::vector<const Target*>& RunnableTargets();

// The first of them.
const Target& BestTarget();

// The target of that name, or the best one for "auto"; null if the name is unknown or this machine cannot run it.
const Target* FindTarget(std::string_view name);

// Returns the names that FindTarget knows, for a message: "auto, avx2, sse4, scalar".
std::string TargetNames();

}  // namespace sortition::kernels::cpu
