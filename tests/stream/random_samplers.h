// Random chains, for tests of rules that hold with any chain.
#pragma once

#include <cstdint>
#include <random>

#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Above 0 and below `bound`.
inline float Below(std::mt19937_64* random, float bound) { return bound * float(1 + (*random)() % 1000) / 1001; }

// Sets each stateless sampler of the chain at random, in the order of a random preset.
inline void SetSamplers(std::mt19937_64* random, v1::SamplingParameters* p) {
  const auto sometimes = [&] { return (*random)() % 5 == 0; };
  p->set_temperature(0.5f + Below(random, 1.5f));
  if (sometimes()) p->set_top_k(1 + static_cast<uint32_t>((*random)() % 40));
  if (sometimes()) p->set_top_p(0.5f + Below(random, 0.5f));
  if (sometimes()) p->set_min_p(Below(random, 0.1f));
  if (sometimes()) p->set_typical_p(0.5f + Below(random, 0.5f));
  if (sometimes()) p->set_top_n_sigma(0.5f + Below(random, 2));
  if (sometimes()) p->set_epsilon_cutoff(Below(random, 0.02f));
  if (sometimes()) p->set_eta_cutoff(Below(random, 0.02f));
  if (sometimes()) p->set_top_a(Below(random, 0.5f));
  if (sometimes()) p->set_top_h(0.5f + Below(random, 0.5f));
  if (sometimes()) p->set_p_less(true);
  if (sometimes()) p->mutable_min_k()->set_tau(Below(random, 30.0f));
  if (sometimes()) p->set_min_keep(1 + (*random)() % 20);
  if (sometimes()) {
    p->mutable_xtc()->set_probability(0.5f);
    p->mutable_xtc()->set_threshold(0.02f + Below(random, 0.1f));
  }
  if (sometimes()) p->mutable_dynamic_temperature()->set_range(Below(random, 0.5f));
  if (sometimes()) p->mutable_quadratic_smoothing()->set_factor(Below(random, 1));
  p->mutable_chain()->set_preset(static_cast<v1::Chain::Preset>((*random)() % 4));
}

}  // namespace sortition::service
