// Runs the race of the tokens that may be before the given one. Leaves out those that are provably behind it.
#include "kernels/cpu/race_place.h"

#include <algorithm>

#include "kernels/cpu/racers.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kGroupsAtOnce = 64;

class Placing {
 public:
  // `race_key` is the race key of `given`.
  Placing(const Kernels& kernels, const law::DrawKey& key, int64_t race_key, uint32_t given, Scratch* scratch)
      : kernels_(kernels),
        key_(key),
        mine_(race_key),
        given_(given),
        needed_(PromiseNeeded(race_key)),
        scratch_(scratch),
        racers_(scratch->token_racers),
        best_(race_key) {
    racers_.count = 0;
  }

  void RunListed(std::span<const Candidate> listed, const RowScale& scale) {
    racers_.Reserve(uint32_t(listed.size()));
    kernels_.EnterCandidates(listed.data(), uint32_t(listed.size()), scale, key_, &racers_);
    Run();
  }

  void RunRow(const RowView& row, const RowScale& scale, Candidate last) {
    GroupRacers& noise = scratch_->group_racers;
    kernels_.PromiseGroups(row, last.key(), scale, key_, &noise);
    Candidate* const edited = scratch_->leading.Reserve(row.edited.size());
    uint32_t able = 0;
    for (const Candidate& candidate : row.edited) {
      edited[able] = candidate;
      able += candidate >= last && noise.promise.data()[candidate.token() / law::kGroupSize] >= needed_;
    }
    RunListed({edited, able}, scale);
    uint32_t* const groups = scratch_->groups.Reserve(row.groups);
    const uint32_t count = kernels_.SelectAtLeast(noise.promise.data(), row.groups, needed_, groups);
    racers_.Reserve(kGroupsAtOnce * law::kGroupSize);
    for (uint32_t begin = 0; begin < count; begin += kGroupsAtOnce) {
      const uint32_t some = std::min(kGroupsAtOnce, count - begin);
      kernels_.EnterGroups(row, groups + begin, some, needed_, last, scale, noise, &racers_);
      Run();
    }
  }

  RacePlace place() const { return {rank_, mine_ - best_}; }

 private:
  // Lets the racers race, and dismisses them.
  void Run() {
    const uint32_t count = racers_.count;
    if (count == 0) return;
    kernels_.PromiseTokens(key_, &racers_);
    uint32_t* const some = scratch_->survivors.Reserve(count);
    uint32_t near = 0;
    rank_ += kernels_.CountAhead(racers_, mine_, some, &near);
    for (uint32_t i = 0; i < near; ++i) {
      const int64_t race_key = RaceKeyOf(some[i]);
      rank_ += race_key < mine_ || (race_key == mine_ && racers_.token.data()[some[i]] < given_);
    }
    FindBest(count, some);
    racers_.count = 0;
  }

  // Lowers `best_` to the smallest race key of the racers. The most promising racer goes first and sets a mark that few
  // others reach.
  void FindBest(uint32_t count, uint32_t* some) {
    const uint32_t* const promises = racers_.promise.data();
    const uint32_t most = kernels_.FindMax(promises, count);
    if (promises[most] < PromiseNeeded(best_)) return;
    best_ = std::min(best_, RaceKeyOf(most));
    const uint32_t left = kernels_.SelectAtLeast(promises, count, PromiseNeeded(best_), some);
    for (uint32_t i = 0; i < left; ++i) best_ = std::min(best_, RaceKeyOf(some[i]));
  }

  int64_t RaceKeyOf(uint32_t i) const {
    const uint64_t log = LogOf(racers_.GroupWord(i), racers_.Word(i), racers_.token.data()[i]);
    return law::SignedRaceKey(racers_.t.data()[i], log);
  }

  const Kernels& kernels_;
  const law::DrawKey& key_;
  const int64_t mine_;
  const uint32_t given_;
  const uint32_t needed_;  // no token of a smaller promise is before the given one
  Scratch* const scratch_;
  TokenRacers& racers_;
  uint32_t rank_ = 1;
  int64_t best_;
};

}  // namespace

RacePlace FindRacePlace(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                        const law::DrawKey& key, Candidate given, Scratch* scratch) {
  if (given.key() < scale.first_live_key || !kept.Has(given)) return {};
  const uint64_t log = law::TokenNoise(key, given.token());
  const int64_t race_key = law::SignedRaceKey(DistanceOfKey(given.key(), scale), log);
  Placing placing(kernels, key, race_key, given.token(), scratch);
  if (kept.listed.empty()) {
    placing.RunRow(row, scale, kept.last);
  } else {
    placing.RunListed(kept.listed, scale);
  }
  return placing.place();
}

}  // namespace sortition::kernels::cpu
