// Least squares over four terms, none of them negative.
#include "service/route/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace sortition::service {
namespace {

constexpr double kForgetBatch = 0.93;    // factor on a batch's weight with each later batch
constexpr double kForgetSeconds = 20.0;  // half-life of a measurement
constexpr double kPriorWeight = 1e-3;    // weight of the prior in each term, in batches
constexpr double kShortest = 1e-9;       // seconds; lower bound on predictions

// Solves a * x = b for the terms in `used` by Gaussian elimination; the other terms are 0. `a` is positive definite.
template <size_t kTerms>
std::array<double, kTerms> Solve(std::array<std::array<double, kTerms>, kTerms> a, std::array<double, kTerms> b,
                                 const std::array<bool, kTerms>& used) {
  for (size_t i = 0; i < kTerms; ++i) {
    if (!used[i]) continue;
    for (size_t j = i + 1; j < kTerms; ++j) {
      if (!used[j]) continue;
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < kTerms; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  }
  std::array<double, kTerms> x = {};
  for (size_t i = kTerms; i-- > 0;) {
    if (!used[i]) continue;
    double sum = b[i];
    for (size_t k = i + 1; k < kTerms; ++k) sum -= used[k] ? a[i][k] * x[k] : 0;
    x[i] = sum / a[i][i];
  }
  return x;
}

}  // namespace

Costs CostModel::At(absl::Time now) const {
  if (observed_ == absl::InfinitePast()) return prior_;
  const double known = std::exp2(-std::max(0.0, absl::ToDoubleSeconds(now - observed_)) / kForgetSeconds);
  const auto mix = [&](double Costs::*term) { return known * costs_.*term + (1 - known) * prior_.*term; };
  return {mix(&Costs::launch), mix(&Costs::row), mix(&Costs::byte), mix(&Costs::moved_byte)};
}

double CostModel::Seconds(const Work& work, absl::Time now) const { return std::max(kShortest, At(now).Seconds(work)); }

void CostModel::Observe(const Work& work, absl::Duration time, absl::Time now) {
  observed_ = now;
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(time));
  const double bytes = double(work.bytes);
  const Terms terms = {prior_.launch, prior_.row * double(work.rows), prior_.byte * bytes,
                       work.moves ? prior_.moved_byte * bytes : 0};
  // Errors are relative to the work, not to the time: so batches of a device that has become slow outweigh earlier
  // ones.
  const double scale = prior_.Seconds(work);
  for (int i = 0; i < kTerms; ++i) {
    targets_[i] = kForgetBatch * targets_[i] + terms[i] / scale * (seconds / scale);
    for (int j = 0; j < kTerms; ++j) {
      products_[i][j] = kForgetBatch * products_[i][j] + terms[i] / scale * (terms[j] / scale);
    }
  }
  Fit();
}

void CostModel::Fit() {
  std::array<Terms, kTerms> a = products_;
  Terms b = targets_;
  // Terms that no batch tells apart keep the prior's proportions, times the one factor that fits best.
  double products = 0;
  double targets = 0;
  for (int i = 0; i < kTerms; ++i) {
    targets += targets_[i];
    for (int j = 0; j < kTerms; ++j) products += products_[i][j];
  }
  const double factor = std::max(targets / products, 1e-6);
  for (int i = 0; i < kTerms; ++i) {
    a[i][i] += kPriorWeight / (factor * factor);
    b[i] += kPriorWeight / factor;
  }
  // Leaves out a term that would be negative, and fits the others again.
  std::array<bool, kTerms> used = {true, true, true, true};
  Terms x = Solve<kTerms>(a, b, used);
  for (int left_out = 0; left_out < kTerms; ++left_out) {
    const auto least = std::min_element(x.begin(), x.end());
    if (*least >= 0) break;
    used[size_t(least - x.begin())] = false;
    x = Solve<kTerms>(a, b, used);
  }
  costs_ = {x[0] * prior_.launch, x[1] * prior_.row, x[2] * prior_.byte, x[3] * prior_.moved_byte};
}

}  // namespace sortition::service
