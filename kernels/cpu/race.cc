// Prunes the race. It leaves out tokens that provably lose, so the winner stays the same.
#include "kernels/cpu/race.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kOctave = 1u << 23;  // in promises
constexpr uint32_t kFewGroups = 48;
constexpr uint32_t kLeastGroupsAtOnce = 8;
constexpr uint32_t kMostGroupsAtOnce = 64;

class Race {
 public:
  // `adapted` is RowScale::adapted; `reweigh`: null if the weights race as they are.
  Race(const Kernels& kernels, const law::DrawKey& key, const law::Shape* adapted, const Reweigh* reweigh,
       Scratch* scratch)
      : kernels_(kernels),
        key_(key),
        adapted_(adapted),
        reweigh_(reweigh),
        racers_(scratch->token_racers),
        survivors_(scratch->survivors) {}

  // A promise below it cannot win.
  uint32_t PromiseNeeded() const { return cpu::PromiseNeeded(best_); }
  uint32_t winner() const { return winner_; }
  TokenRacers& racers() { return racers_; }

  // Lets the racers race, and dismisses them.
  void Run() {
    const uint32_t count = racers_.count;
    if (count == 0) return;
    if (adapted_ != nullptr) AdaptRacers();
    kernels_.PromiseTokens(key_, &racers_);
    const uint32_t* const promises = racers_.promise.data();
    const uint32_t most = kernels_.FindMax(promises, count);
    if (promises[most] >= PromiseNeeded()) {
      RunOne(most);
      uint32_t* const survivors = survivors_.Reserve(count);
      const uint32_t left = kernels_.SelectAtLeast(promises, count, PromiseNeeded(), survivors);
      for (uint32_t i = 0; i < left; ++i) RunOne(survivors[i]);
    }
    racers_.count = 0;
  }

 private:
  void AdaptRacers() {
    for (uint32_t i = 0; i < racers_.count; ++i) {
      uint32_t& t = racers_.t.data()[i];
      if (t == law::kDead) continue;
      t = law::AdaptedDistance(law::ProbabilityOf(law::Weight(t), adapted_->share), adapted_->target);
    }
  }

  void RunOne(uint32_t i) {
    const uint32_t token = racers_.token.data()[i];
    const uint64_t log = LogOf(racers_.GroupWord(i), racers_.Word(i), token);
    const uint32_t t = racers_.t.data()[i];
    int64_t race_key;
    if (reweigh_ == nullptr) {
      race_key = law::SignedRaceKey(t, log);
    } else {
      // The rest of a weight is at most the weight, so the token's promise still bounds it.
      const uint64_t weight = law::Weight(t);
      const uint64_t left = weight == 0 ? 0 : (*reweigh_)(token, weight);
      if (left == 0) return;
      race_key = int64_t(law::ResidualRaceKey(left, log));
    }
    if (race_key > best_ || (race_key == best_ && token >= winner_)) return;
    best_ = race_key;
    winner_ = token;
  }

  const Kernels& kernels_;
  const law::DrawKey& key_;
  const law::Shape* const adapted_;
  const Reweigh* const reweigh_;
  TokenRacers& racers_;
  Array<uint32_t>& survivors_;
  int64_t best_ = std::numeric_limits<int64_t>::max();
  uint32_t winner_ = RowRequest::kNoToken;
};

// The race among all the tokens that are not after `last`.
class RowRace {
 public:
  RowRace(const Kernels& kernels, const RowView& row, const RowScale& scale, Candidate last, const law::DrawKey& key,
          const Reweigh* reweigh, Scratch* scratch)
      : kernels_(kernels),
        row_(row),
        scale_(scale),
        last_(last),
        key_(key),
        groups_(scratch->group_racers),
        survivors_(scratch->groups),
        able_(scratch->leading),
        race_(kernels, key, scale.adapted, reweigh, scratch) {
    // An adapted distance cannot be turned back into a logit.
    if (scale_.adapted != nullptr) scale_.logits_per_unit = std::numeric_limits<float>::infinity();
  }

  uint32_t Run(std::optional<Candidate> likely) {
    kernels_.PromiseGroups(row_, last_.key(), scale_, key_, &groups_);
    if (scale_.adapted != nullptr) AdaptPromises(*scale_.adapted);
    race_.racers().count = 0;
    race_.racers().Reserve(kMostGroupsAtOnce * law::kGroupSize);
    if (likely) {
      // Vectors read past the end of their input.
      *able_.Reserve(1) = *likely;
      kernels_.EnterCandidates(able_.data(), 1, scale_, key_, &race_.racers());
      race_.Run();
    } else {
      RunLikelyGroups();
    }
    RunEdited();
    RunGroups();
    return race_.winner();
  }

 private:
  static uint32_t Lower(uint32_t promise, uint32_t by) { return promise > by ? promise - by : 1; }

  uint32_t promise(uint32_t group) const { return groups_.promise.data()[group]; }
  uint32_t MostPromising() const { return kernels_.FindMax(groups_.promise.data(), row_.groups); }

  // Turns promises into bounds for adapted distances. If the group's largest probability, rounded up to whole octaves,
  // lies below the target, no token of the group is nearer to the target than that. Otherwise a token may be at the
  // target.
  void AdaptPromises(const law::Shape& shape) {
    uint32_t nearest[64];
    const uint64_t first = law::ProbabilityOf(law::kUnitWeight, shape.share);
    for (uint32_t octaves = 0; octaves < 64; ++octaves) {
      const uint64_t most = (first >> octaves) + 1;
      nearest[octaves] = most >= shape.target ? 0 : law::AdaptedDistance(uint32_t(most), shape.target);
    }
    for (uint32_t group = 0; group < row_.groups; ++group) {
      uint32_t& promise = groups_.promise.data()[group];
      if (promise == 0) continue;
      const uint32_t t = law::Distance(law::ShapedBits(law::KeyBits(row_.maxima[group]), shape), shape.scale);
      promise += (t >> 3) - (nearest[t >> 26] >> 3);
    }
  }

  void RunLikelyGroups() {
    // Two groups that are likely to hold the winner set a mark that few others reach: the group with the greatest
    // promise, and the group with the largest logit (the first one's owner may be masked or unlikely).
    const uint32_t promising = MostPromising();
    const uint32_t likely = kernels_.FindMax(row_.maxima, row_.groups);
    SORTITION_CHECK(promise(promising) != 0);
    Enter(&promising, 1, Lower(promise(promising), 4 * kOctave));
    if (likely != promising) Enter(&likely, 1, Lower(promise(likely), 4 * kOctave));
    race_.Run();
  }

  // Adds the groups' tokens that show the sent logit.
  void Enter(const uint32_t* groups, uint32_t count, uint32_t needed) {
    kernels_.EnterGroups(row_, groups, count, needed, last_, scale_, groups_, &race_.racers());
  }

  // Lets the other tokens race.
  void RunEdited() {
    Candidate* const able = able_.Reserve(row_.edited.size());
    uint32_t count = 0;
    for (const Candidate& candidate : row_.edited) {
      able[count] = candidate;
      count += candidate >= last_ && promise(candidate.token() / law::kGroupSize) >= race_.PromiseNeeded();
    }
    if (count == 0) return;
    race_.racers().Reserve(count);
    kernels_.EnterCandidates(able, count, scale_, key_, &race_.racers());
    race_.Run();
  }

  // Runs the race of all groups that can still win. If they are many, the better ones go first and raise the mark.
  void RunGroups() {
    for (;;) {
      uint32_t* const groups = survivors_.Reserve(row_.groups);
      uint32_t count = Survivors(race_.PromiseNeeded(), groups);
      const bool all = count <= kFewGroups;
      if (!all) {
        const uint32_t top = promise(MostPromising());
        count = Survivors(std::max(race_.PromiseNeeded(), Lower(top, 3 * kOctave)), groups);
      }
      uint32_t at_once = kLeastGroupsAtOnce;
      for (uint32_t begin = 0; begin < count; begin += at_once, at_once = std::min(2 * at_once, kMostGroupsAtOnce)) {
        Enter(groups + begin, std::min(at_once, count - begin), race_.PromiseNeeded());
        race_.Run();
      }
      if (all) return;
      for (uint32_t i = 0; i < count; ++i) groups_.promise.data()[groups[i]] = 0;
    }
  }

  uint32_t Survivors(uint32_t needed, uint32_t* groups) const {
    return kernels_.SelectAtLeast(groups_.promise.data(), row_.groups, needed, groups);
  }

  const Kernels& kernels_;
  const RowView& row_;
  RowScale scale_;
  const Candidate last_;
  const law::DrawKey& key_;
  GroupRacers& groups_;
  Array<uint32_t>& survivors_;
  Array<Candidate>& able_;
  Race race_;
};

uint32_t RunRace(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                 const law::DrawKey& key, const Reweigh* reweigh, std::optional<Candidate> likely, Scratch* scratch) {
  if (kept.listed.empty()) return RowRace(kernels, row, scale, kept.last, key, reweigh, scratch).Run(likely);
  Race race(kernels, key, scale.adapted, reweigh, scratch);
  race.racers().count = 0;
  race.racers().Reserve(uint32_t(kept.listed.size()));
  kernels.EnterCandidates(kept.listed.data(), uint32_t(kept.listed.size()), scale, key, &race.racers());
  race.Run();
  return race.winner();
}

}  // namespace

uint32_t Draw(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
              const law::DrawKey& key, std::optional<Candidate> likely, Scratch* scratch) {
  if (kept.listed.size() == 1) return kept.listed[0].token();
  return RunRace(kernels, row, scale, kept, key, nullptr, likely, scratch);
}

uint32_t DrawReweighed(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                       const law::DrawKey& key, const Reweigh& reweigh, Scratch* scratch) {
  return RunRace(kernels, row, scale, kept, key, &reweigh, std::nullopt, scratch);
}

}  // namespace sortition::kernels::cpu
