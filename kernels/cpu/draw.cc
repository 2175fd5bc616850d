// Pruning of the race. It leaves out what provably loses, so it cannot change which token wins.
#include "kernels/cpu/draw.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kOctave = 1u << 23;          // in promises
constexpr uint32_t kDistanceOctave = 1u << 26;  // in distances
constexpr uint32_t kMostAtOnce = 2048;          // entrants

class Race {
 public:
  Race(const Kernels& kernels, const law::DrawKey& key, Scratch* scratch)
      : kernels_(kernels), key_(key), entrants_(scratch->token_entrants), survivors_(scratch->survivors) {}

  // No promise below it can change the outcome.
  uint32_t PromiseNeeded() const { return cpu::PromiseNeeded(best_); }
  uint32_t winner() const { return winner_; }
  TokenEntrants& entrants() { return entrants_; }

  // Lets the entrants race, and dismisses them.
  void Run() {
    const uint32_t count = entrants_.count;
    if (count == 0) return;
    kernels_.PromiseTokens(key_, &entrants_);
    const uint32_t* const promises = entrants_.promise.data();
    const uint32_t most = kernels_.FindMax(promises, count);
    if (promises[most] >= PromiseNeeded()) {
      RunOne(most);
      uint32_t* const survivors = survivors_.Reserve(count);
      const uint32_t left = kernels_.SelectAtLeast(promises, count, PromiseNeeded(), survivors);
      for (uint32_t i = 0; i < left; ++i) RunOne(survivors[i]);
    }
    entrants_.count = 0;
  }

 private:
  void RunOne(uint32_t i) {
    const uint64_t group_word = entrants_.GroupWord(i);
    const uint32_t token = entrants_.token.data()[i];
    const uint64_t a = law::NegLog2(law::Uniform(group_word));
    const uint64_t log = law::Owner(group_word) == token % law::kGroupSize
                             ? law::OwnerLog(a)
                             : law::OtherLog(a, law::NegLog2(law::Uniform(entrants_.Word(i))));
    const int64_t race_key = law::SignedRaceKey(entrants_.t.data()[i], log);
    if (race_key > best_ || (race_key == best_ && token >= winner_)) return;
    best_ = race_key;
    winner_ = token;
  }

  const Kernels& kernels_;
  const law::DrawKey& key_;
  TokenEntrants& entrants_;
  Array<uint32_t>& survivors_;
  int64_t best_ = std::numeric_limits<int64_t>::max();
  uint32_t winner_ = ~0u;
};

// The race among all the tokens that are not after `last`.
class RowRace {
 public:
  RowRace(const Kernels& kernels, const Row& row, const RowScale& scale, Candidate last, const law::DrawKey& key,
          Scratch* scratch)
      : kernels_(kernels),
        row_(row),
        scale_(scale),
        last_(last),
        key_(key),
        groups_(scratch->group_entrants),
        survivors_(scratch->groups),
        race_(kernels, key, scratch) {}

  uint32_t Run() {
    kernels_.PromiseGroups(row_, last_.key(), scale_, key_, &groups_);
    race_.entrants().Reserve(kMostAtOnce + 2 * law::kGroupSize + row_.patched.size());
    // Two groups that are likely to hold the winner set a mark that few others reach: the one of the greatest promise,
    // and the one of the largest logit (for the first one's owner may be masked, or unlikely).
    const uint32_t promising = kernels_.FindMax(groups_.promise.data(), row_.groups);
    const uint32_t likely = kernels_.FindMax(row_.maxima, row_.groups);
    SORTITION_CHECK(groups_.promise.data()[promising] != 0);
    EnterGroup(promising, law::kDeadFromDistance - 1);
    if (likely != promising) EnterGroup(likely, 4 * kDistanceOctave);
    race_.Run();

    // The better half of what is left raises the mark for the others.
    const uint32_t good = groups_.promise.data()[promising] - 2 * kOctave;
    RunFrom(std::max(good, race_.PromiseNeeded()), 64);
    RunFrom(race_.PromiseNeeded(), 64);
    return race_.winner();
  }

 private:
  // Lets the groups race whose promise is at least `promise`, `at_once` tokens or more at a time, and more each time.
  void RunFrom(uint32_t promise, uint32_t at_once) {
    uint32_t* const survivors = survivors_.Reserve(row_.groups);
    const uint32_t count = kernels_.SelectAtLeast(groups_.promise.data(), row_.groups, promise, survivors);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t needed = race_.PromiseNeeded();
      if (groups_.promise.data()[survivors[i]] < needed) continue;
      EnterGroup(survivors[i], MostDistance(groups_.Word(survivors[i]), needed));
      if (race_.entrants().count < at_once) continue;
      race_.Run();
      at_once = std::min(2 * at_once, kMostAtOnce);
    }
    race_.Run();
  }

  // Enters a group's tokens of a distance <= `most`; once only.
  void EnterGroup(uint32_t group, uint32_t most) {
    kernels_.EnterTokens(row_, group, groups_.Word(group), last_, most, scale_, &race_.entrants());
    const uint32_t first = group * law::kGroupSize;
    auto patched = std::ranges::lower_bound(row_.patched, first, {}, &Candidate::token);
    for (; patched != row_.patched.end() && patched->token() - first < law::kGroupSize; ++patched) {
      if (*patched >= last_) kernels_.EnterCandidates(&*patched, 1, scale_, key_, &race_.entrants());
    }
  }

  const Kernels& kernels_;
  const Row& row_;
  const RowScale& scale_;
  const Candidate last_;
  const law::DrawKey& key_;
  GroupEntrants& groups_;
  Array<uint32_t>& survivors_;
  Race race_;
};

}  // namespace

uint32_t Draw(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept, const law::DrawKey& key,
              Scratch* scratch) {
  if (kept.listed.empty()) return RowRace(kernels, row, scale, kept.last, key, scratch).Run();
  if (kept.listed.size() == 1) return kept.listed[0].token();
  Race race(kernels, key, scratch);
  race.entrants().count = 0;
  race.entrants().Reserve(uint32_t(kept.listed.size()));
  kernels.EnterCandidates(kept.listed.data(), uint32_t(kept.listed.size()), scale, key, &race.entrants());
  race.Run();
  return race.winner();
}

}  // namespace sortition::kernels::cpu
