// Cost of a batch on a device, learned from the batches that the device has done.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace sortition::service {

// Size of a batch, as far as its cost depends on it.
struct Work {
  uint32_t rows = 0;
  uint64_t bytes = 0;  // bytes of logits
  bool moves = false;  // true if the logits lie outside the device's memory
};

// Seconds for each unit; all positive.
struct Costs {
  double launch = 50e-6;
  double row = 20e-6;
  double byte = 0.1e-9;
  double moved_byte = 0.1e-9;

  double Seconds(const Work& work) const {
    return launch + row * double(work.rows) + (byte + (work.moves ? moved_byte : 0)) * double(work.bytes);
  }
};

// Models seconds = launch + rows * row + bytes * byte + (moves ? bytes * moved_byte : 0). Least squares fit the terms
// to measured batches, with errors relative to the work. Older batches count less. Without measurements, or long after
// the last one, the prior holds; so a device that was slow for a while is tried again. Not thread-safe.
class CostModel {
 public:
  explicit CostModel(const Costs& prior = Costs()) : prior_(prior), costs_(prior) {}

  // Expected costs of batches that start now.
  Costs At(absl::Time now) const;
  double Seconds(const Work& work, absl::Time now) const;
  const Costs& costs() const { return costs_; }

  // `time`: how long the device was busy with this batch alone; at least zero.
  void Observe(const Work& work, absl::Duration time, absl::Time now);
  // Makes the current estimate the prior, for terms without observations.
  void MakePrior() { prior_ = costs_; }

 private:
  static constexpr int kTerms = 4;
  using Terms = std::array<double, kTerms>;

  void Fit();

  Costs prior_;
  Costs costs_;
  // The normal equations, in units of the prior.
  std::array<Terms, kTerms> products_ = {};
  Terms targets_ = {};
  absl::Time observed_ = absl::InfinitePast();
};

}  // namespace sortition::service
