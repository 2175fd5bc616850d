// Drawing, writing and reading of revisions.
#include "tests/simulation/policies.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tests/simulation/draw.h"

namespace sortition::simulation {
namespace {

constexpr float kMostPenalty = 0.4375f;

std::string IdOf(uint32_t key) { return absl::StrCat("key-", key); }
uint32_t WidthOf(uint32_t key) { return 1 + key % 3; }

Rules DrawRules(Draws* draws, uint32_t number) {
  Rules rules;
  rules.has_policy = !draws->OneIn(3);
  if (!draws->OneIn(3)) rules.keys = {number};
  rules.skips = draws->OneIn(2);
  rules.bounds_penalty = draws->OneIn(2);
  rules.bans_dry = draws->OneIn(3);
  return rules;
}

std::vector<Rules> DrawRevisions(uint64_t seed, absl::Duration horizon) {
  Draws draws(seed, Choice::kPolicy, {});
  std::vector<Rules> revisions = {DrawRules(&draws, 0)};
  const uint32_t count = draws.OneIn(3) ? 0 : draws.Between(1, 3);
  for (uint32_t number = 1; number <= count; ++number) {
    Rules next = revisions.back();
    next.is_usable = true;
    if (!next.keys.empty() && !draws.OneIn(3)) next.keys.insert(next.keys.begin(), number);
    if (next.keys.size() > 1 && draws.OneIn(4)) next.keys.resize(1);
    if (draws.OneIn(6)) next = DrawRules(&draws, number);
    if (draws.OneIn(6)) next.skips = !next.skips;
    next.at = horizon * (number - 1) / count + horizon * draws.Below(900) / (1000 * count);
    if (draws.OneIn(4)) {
      Rules mistake = next;
      mistake.is_usable = false;
      revisions.push_back(mistake);
      next.at += horizon * draws.Below(100) / (1000 * count);
    }
    revisions.push_back(next);
  }
  for (uint32_t i = 0; i < revisions.size(); ++i) revisions[i].epsilon_cutoff = (1 + i) / 1000.0;
  return revisions;
}

// Returns the text of a revision's file of keys.
std::string KeysOf(const Rules& rules) {
  std::string text;
  for (const uint32_t key : rules.keys) {
    absl::StrAppend(&text, IdOf(key), " ", Draw(7, Choice::kPolicy, {key}), " ", WidthOf(key), "\n");
  }
  return text;
}

std::string TextOf(const Rules& rules, const std::string& keys) {
  std::string policy = R"("tenant": "other")";
  if (rules.has_policy) {
    policy = absl::StrCat(R"("tenant": "simulation", "defaults": {"epsilonCutoff": )", rules.epsilon_cutoff, "}");
    std::string limits;
    if (rules.bounds_penalty) {
      limits = absl::StrCat(R"({"field": "frequency_penalty", "max": )", kMostPenalty,
                            R"(, "violation": "VIOLATION_APPLY"})");
    }
    if (rules.bans_dry) {
      absl::StrAppend(&limits, limits.empty() ? "" : ", ",
                      R"({"field": "dry", "banned": true, "violation": "VIOLATION_APPLY"})");
    }
    absl::StrAppend(&policy, R"(, "limits": [)", limits, "]");
    if (!rules.keys.empty()) {
      absl::StrAppend(&policy, R"(, "watermark": {"keys": ")", keys, R"(", "skipRepeatedContexts": )",
                      rules.skips ? "true" : "false", "}");
    }
  }
  return absl::StrCat(R"({"policies": [{)", policy, rules.is_usable ? "" : R"(, "colour": 1)", "}]}");
}

}  // namespace

std::optional<Rules::Effect> Rules::Apply(const v1::SamplingParameters& wanted, const std::string& key_id) const {
  const std::vector<uint32_t> known = has_policy ? keys : std::vector<uint32_t>();
  Effect effect{wanted, ""};
  if (has_policy && !wanted.has_epsilon_cutoff()) {
    effect.parameters.set_epsilon_cutoff(static_cast<float>(epsilon_cutoff));
  }
  if (has_policy && bounds_penalty && wanted.frequency_penalty() > kMostPenalty) {
    effect.parameters.set_frequency_penalty(kMostPenalty);
  }
  if (has_policy && bans_dry) effect.parameters.clear_dry();
  if (known.empty()) return key_id.empty() ? std::optional(effect) : std::nullopt;
  const auto key = key_id.empty() ? known.begin() : std::ranges::find(known, key_id, IdOf);
  if (key == known.end()) return std::nullopt;
  effect.key_id = IdOf(*key);
  v1::Watermark& mark = *effect.parameters.mutable_watermark();
  mark.set_key(Draw(7, Choice::kPolicy, {*key}));
  mark.set_context_width(WidthOf(*key));
  if (skips) mark.set_skip_repeated_contexts(true);
  return effect;
}

PolicyFile::PolicyFile(uint64_t seed, absl::Duration horizon) : revisions_(DrawRevisions(seed, horizon)) {
  std::string folder = (std::filesystem::temp_directory_path() / "simulationXXXXXX").string();
  SORTITION_CHECK(::mkdtemp(folder.data()) != nullptr);
  folder_ = folder;
  path_ = folder_ + "/policies";
  Write(0);
}

PolicyFile::~PolicyFile() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void PolicyFile::Write(size_t revision) {
  written_ = revision + 1;
  const std::string keys = folder_ + "/keys";
  // Gives each revision's files another size, since a file system's clock may be coarser than the world's.
  const std::string padding(revision + 1, '\n');
  for (const auto& [path, text] :
       {std::pair(keys, KeysOf(revisions_[revision])), std::pair(path_, TextOf(revisions_[revision], keys))}) {
    std::ofstream(path + ".new", std::ios::binary) << text << padding;
    std::filesystem::rename(path + ".new", path);
  }
}

const Rules* PolicyFile::Find(const v1::SamplingParameters& wanted, const v1::PolicyEffect& effect) const {
  for (size_t i = written_; i-- > 0;) {
    const Rules& rules = revisions_[i];
    if (!rules.is_usable) continue;
    const auto due = rules.Apply(wanted, "");
    if (!due || due->key_id != effect.watermark_key_id()) continue;
    v1::SamplingParameters applied = wanted;
    for (const std::string& name : effect.removed()) {
      if (name == "dry") applied.clear_dry();
    }
    applied.MergeFrom(effect.applied());
    v1::SamplingParameters unmarked = due->parameters;
    unmarked.clear_watermark();
    if (applied.SerializeAsString() == unmarked.SerializeAsString()) return &rules;
  }
  return nullptr;
}

bool PolicyFile::MayEnd(const Rules& first, const v1::SamplingParameters& in_force, const std::string& key_id) const {
  const auto before = first.Apply(in_force, key_id);
  SORTITION_CHECK(before);
  for (size_t i = 0; i < written_; ++i) {
    if (!revisions_[i].is_usable) continue;
    const auto after = revisions_[i].Apply(in_force, key_id);
    if (!after || after->key_id != key_id ||
        after->parameters.SerializeAsString() != before->parameters.SerializeAsString()) {
      return true;
    }
  }
  return false;
}

}  // namespace sortition::simulation
