// The operator's policies of a simulated world: revisions of one file, which change while replicas and workers run, and
// a plain model of their effect on an open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::simulation {

// One revision.
struct Rules {
  absl::Duration at;           // time of writing
  bool is_usable = true;       // false: the file has a mistake, so the former policies stay
  bool has_policy = true;      // for the world's workers; false: only for another tenant
  std::vector<uint32_t> keys;  // numbers of the keys of a required watermark, the newest first; empty: none
  bool skips = false;          // skip_repeated_contexts
  double epsilon_cutoff = 0;   // the default of a field that no caller sets; tells revisions with a policy apart
  bool bounds_penalty = false;
  bool bans_dry = false;

  // The effect of a revision on an open.
  struct Effect {
    v1::SamplingParameters parameters;  // in force, with the operator's watermark
    std::string key_id;
  };
  // Applies the revision to an open with `key_id`; empty if it refuses the open.
  std::optional<Effect> Apply(const v1::SamplingParameters& wanted, const std::string& key_id) const;
};

// Not thread-safe.
class PolicyFile {
 public:
  // Draws the revisions from the world's seed and writes the first one.
  PolicyFile(uint64_t seed, absl::Duration horizon);
  ~PolicyFile();
  PolicyFile(const PolicyFile&) = delete;
  PolicyFile& operator=(const PolicyFile&) = delete;

  const std::string& path() const { return path_; }
  // In order of time; the last one is usable.
  const std::vector<Rules>& revisions() const { return revisions_; }
  void Write(size_t revision);

  // Returns a revision that was written so far and has this effect on an open; null if there is none.
  const Rules* Find(const v1::SamplingParameters& wanted, const v1::PolicyEffect& effect) const;
  // Returns true if some revision written so far would change the tokens of a text that was opened under `first` and
  // has these parameters in force, without a watermark.
  bool MayEnd(const Rules& first, const v1::SamplingParameters& in_force, const std::string& key_id) const;

 private:
  std::string folder_;
  std::string path_;
  std::vector<Rules> revisions_;
  size_t written_ = 0;
};

}  // namespace sortition::simulation
