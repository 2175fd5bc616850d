// The settings of proofs: settings.json, which every archive carries, as plain values, and the steps that they ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/archive/model.h"
#include "sortition/batch.h"
#include "sortition/options.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::archive {

inline constexpr std::string_view kFormat = "sortition proof 1";

// The hiding of tokens at each position.
struct MaskRule {
  uint32_t period = 0;
  uint32_t hidden = 0;
};

struct DraftRule {
  v1::VerifyMode mode = v1::VERIFY_MODE_UNSPECIFIED;
  std::vector<int32_t> parents;
  uint32_t depth = 0;  // tokens of the longest path

  bool is_chain() const { return depth == parents.size(); }
};

struct Setting {
  std::string name;
  uint32_t texts = 0;
  uint32_t prompt = 0;  // tokens
  v1::DType dtype = v1::DTYPE_F32;
  v1::SamplingParameters parameters;
  std::optional<MaskRule> mask;
  std::optional<DraftRule> drafts;

  bool has_receipts() const { return !drafts || drafts->mode != v1::VERIFY_MODE_BLOCK; }
  bool has_answers() const { return parameters.has_raw_logprobs(); }  // besides token and logprob
};

inline constexpr uint32_t kAllTexts = ~uint32_t{0};

// Thread-safe: constant.
class Settings {
 public:
  // Reads the file. The error names what this release does not know.
  static absl::StatusOr<Settings> Parse(std::string_view json);
  // Returns those of this release.
  static const Settings& Own();

  const std::string& json() const { return json_; }
  const Model& model() const { return model_; }
  const std::vector<Setting>& list() const { return list_; }
  uint32_t tokens() const { return tokens_; }  // of a text
  uint32_t texts() const { return static_cast<uint32_t>(setting_of_.size()); }
  // The numbers of the texts that are drawn: all, unless First has chosen some.
  const std::vector<uint32_t>& drawn() const { return drawn_; }
  // Returns these settings with the first texts of each drawn, at most `each`.
  Settings First(uint32_t each) const;
  const Setting& Of(uint32_t text) const { return list_[setting_of_[text]]; }

  // Returns the options of a text's sequence, without receipts.
  client::SequenceOptions OptionsOf(uint32_t text) const;

 private:
  explicit Settings(Model model) : model_(std::move(model)) {}

  std::string json_;
  Model model_;
  uint32_t tokens_ = 0;
  std::vector<Setting> list_;
  std::vector<uint32_t> setting_of_;
  std::vector<uint32_t> drawn_;
};

// Returns 16 bytes that hide a text's seed in its receipts.
std::string SaltOf(uint32_t text);
// Returns 16 bytes that name a text's receipts.
std::string NonceOf(uint32_t text);

// The rows of one step of one text. Owns what its row refers to.
class NextStep {
 public:
  // `tokens`: prompt and output so far.
  NextStep(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens);
  NextStep(const NextStep&) = delete;
  NextStep& operator=(const NextStep&) = delete;

  const client::Row& row() const { return row_; }

 private:
  void AddDrafts(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens, const DraftRule& rule);
  void AddMask(const MaskRule& rule, uint32_t position);

  client::Row row_;
  std::string logits_;
  std::vector<uint32_t> mask_;
  std::vector<uint32_t> draft_tokens_;
  std::vector<v1::SparseProbabilities> probabilities_;
  client::Drafts drafts_;
};

// Returns a row as it is sent: of f32, or the high halves.
std::string RowBytes(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens);

}  // namespace sortition::archive
