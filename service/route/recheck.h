// Live rows that are computed a second time, by the law's reference, before their answers leave.
//
// With share 1 no wrong token leaves. With a smaller share a device that lies in some rows is caught by each of them
// with that probability, so the chance that n wrong rows pass is (1 - share)^n.
#pragma once

#include <cstdint>
#include <random>

#include "devices/device.h"

namespace sortition::service {

// Wrong rows after which a device has been caught with at least this probability; share and probability in (0, 1).
uint64_t WrongRowsUntilCaught(double share, double probability);

// Not thread-safe.
class RecheckLottery {
 public:
  // `share`: 0 to 1. A device must not be able to guess which rows are drawn, so a service seeds it from a secret.
  RecheckLottery(double share, uint64_t seed) : share_(share), random_(seed) {}

  double share() const { return share_; }
  // Whether the next row is drawn. Costs nothing at share 0.
  bool Draw() { return share_ > 0 && (share_ >= 1 || std::uniform_real_distribution<double>()(random_) < share_); }

 private:
  const double share_;
  std::mt19937_64 random_;
};

// Whether the law's reference gives this answer. Takes milliseconds at large vocabularies. Thread-safe.
bool IsRight(const devices::DeviceRow& row, const kernels::RowOutput& answer);

}  // namespace sortition::service
