// What a batch costs on a device, learned from those it has done.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace sortition::service {

// What a batch asks of a device.
struct Work {
  uint32_t rows = 0;
  uint64_t bytes = 0;  // of logits
  bool moves = false;  // the logits lie elsewhere than in the device's memory
};

// Seconds each; all positive.
struct Costs {
  double launch = 50e-6;
  double row = 20e-6;
  double byte = 0.1e-9;
  double moved_byte = 0.1e-9;

  double Seconds(const Work& work) const {
    return launch + row * double(work.rows) + (byte + (work.moves ? moved_byte : 0)) * double(work.bytes);
  }
};

// Seconds = launch + rows * row + bytes * byte + (moves ? bytes * moved_byte : 0), fitted to what was measured by least
// squares of the error relative to the work. Older batches count less, and where nothing was measured, or not for long,
// the prior stands; so a device that was slow for a while is tried again. Not thread-safe.
class CostModel {
 public:
  explicit CostModel(const Costs& prior = Costs()) : prior_(prior), costs_(prior) {}

  // Expected of batches that start now.
  Costs At(absl::Time now) const;
  double Seconds(const Work& work, absl::Time now) const;
  const Costs& costs() const { return costs_; }

  // `time` is what the device was busy with the batch alone; at least zero.
  void Observe(const Work& work, absl::Duration time, absl::Time now);
  // What is known now is what stands where nothing better is known.
  void MakePrior() { prior_ = costs_; }

 private:
  static constexpr int kTerms = 4;
  using Terms = std::array<double, kTerms>;

  void Fit();

  Costs prior_;
  Costs costs_;
  // Of the normal equations, in units of the prior.
  std::array<Terms, kTerms> products_ = {};
  Terms targets_ = {};
  absl::Time observed_ = absl::InfinitePast();
};

}  // namespace sortition::service
