// Local search: batches move from the device that ends last.
#include "tests/bench/routing/offline.h"

#include <algorithm>
#include <random>

namespace sortition::bench {
namespace {

constexpr int kStarts = 3;
constexpr int kMoves = 60'000;

class Search {
 public:
  Search(const Scenario& scenario, uint64_t seed)
      : scenario_(scenario), random_(seed), device_of_(scenario.batches.size()), ends_(scenario.devices.size(), 0) {
    // Puts each batch where it would end first, in a random order.
    std::vector<size_t> order(device_of_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (seed != 0) std::shuffle(order.begin(), order.end(), random_);
    std::vector<double> ends(ends_.size(), 0);
    for (const size_t batch : order) {
      size_t best = 0;
      double least = 1e300;
      for (size_t device = 0; device < ends.size(); ++device) {
        const double end = EndOf(scenario.devices[device], scenario.batches[batch], ends[device]);
        if (end < least) best = device;
        least = std::min(least, end);
      }
      device_of_[batch] = best;
      ends[best] = least;
    }
    for (size_t device = 0; device < ends_.size(); ++device) ends_[device] = EndOfAll(device);
  }

  double Run() {
    for (int move = 0; move < kMoves; ++move) TryMove();
    return *std::max_element(ends_.begin(), ends_.end());
  }

 private:
  double EndOfAll(size_t device) const {
    double end = 0;
    for (size_t batch = 0; batch < device_of_.size(); ++batch) {
      if (device_of_[batch] == device) end = EndOf(scenario_.devices[device], scenario_.batches[batch], end);
    }
    return end;
  }

  // Moves a batch from the last device to another, half the time in exchange for one of that one's.
  void TryMove() {
    const auto from = size_t(std::max_element(ends_.begin(), ends_.end()) - ends_.begin());
    const size_t batch = random_() % device_of_.size();
    const size_t other = random_() % device_of_.size();
    if (device_of_[batch] != from) return;
    const bool swaps = random_() % 2 == 0 && device_of_[other] != from;
    const size_t to = swaps ? device_of_[other] : random_() % ends_.size();
    if (to == from) return;
    device_of_[batch] = to;
    if (swaps) device_of_[other] = from;
    const double from_end = EndOfAll(from);
    const double to_end = EndOfAll(to);
    if (std::max(from_end, to_end) < ends_[from]) {
      ends_[from] = from_end;
      ends_[to] = to_end;
      return;
    }
    device_of_[batch] = from;
    if (swaps) device_of_[other] = to;
  }

  const Scenario& scenario_;
  std::mt19937_64 random_;
  std::vector<size_t> device_of_;
  std::vector<double> ends_;
};

}  // namespace

double OfflineMakespan(const Scenario& scenario) {
  double best = 1e300;
  for (uint64_t start = 0; start < kStarts; ++start) best = std::min(best, Search(scenario, start).Run());
  return best;
}

}  // namespace sortition::bench
