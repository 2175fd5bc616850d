// Re-check: a live row is sampled again by the law's reference before its output leaves.
//
// With share 1 no wrong token leaves. With a smaller share, each wrong row exposes its device with that probability, so
// n wrong rows stay unnoticed with probability (1 - share)^n.
#pragma once

#include <cstdint>
#include <random>

#include "devices/device.h"

namespace sortition::service {

// Not thread-safe.
class RecheckLottery {
 public:
  // `share`: 0 to 1. A device must not be able to guess which rows are drawn, so a service uses a secret seed.
  RecheckLottery(double share, uint64_t seed) : share_(share), random_(seed) {}

  // Returns true if the next row is drawn. Costs nothing at share 0.
  bool Draw() { return share_ > 0 && (share_ >= 1 || std::uniform_real_distribution<double>()(random_) < share_); }

 private:
  const double share_;
  std::mt19937_64 random_;
};

// Returns true if the law's reference gives this output. Takes milliseconds at large vocabularies. Thread-safe.
bool IsRight(const devices::DeviceRow& row, const kernels::RowOutput& output);

}  // namespace sortition::service
