// Reads settings.json by protobuf's JSON: parameters are the contract's message.
#include "client/archive/settings.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/check.h"
#include "kernels/law/version.h"

namespace sortition::archive {
namespace {

constexpr std::string_view kOwn =
#include "settings.inc"
    ;

constexpr uint32_t kMostPlaces = 32'768;  // positions, prompt included, that a place's number has room for
constexpr uint32_t kMostTexts = 32'768;
constexpr uint32_t kMostDrafts = 64;
constexpr uint64_t kFirstSeed = 0x70726f6f66000000;

using google::protobuf::Struct;
using google::protobuf::Value;

absl::Status Unknown(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("other settings: ", what));
}

// Reads members of one object. The first problem stays.
class Members {
 public:
  Members(const Struct& object, std::string name) : object_(object), name_(std::move(name)) {}

  const Value* Find(const std::string& member) {
    ++known_;
    const auto found = object_.fields().find(member);
    if (found != object_.fields().end()) return &found->second;
    --known_;
    return nullptr;
  }
  uint32_t Number(const std::string& member, uint32_t least, uint32_t most) {
    const Value* const value = Find(member);
    const double number = value != nullptr && value->has_number_value() ? value->number_value() : -1;
    if (number >= least && number <= most && number == static_cast<uint32_t>(number)) {
      return static_cast<uint32_t>(number);
    }
    Fail(absl::StrCat(name_, member, " is no number of ", least, " to ", most));
    return least;
  }
  std::string Text(const std::string& member) {
    const Value* const value = Find(member);
    if (value != nullptr && value->has_string_value()) return value->string_value();
    Fail(absl::StrCat(name_, member, " is no text"));
    return "";
  }
  void Fail(absl::string_view what) {
    if (status_.ok()) status_ = Unknown(what);
  }
  // Says whether every member was read, and is as it must be.
  absl::Status End() {
    if (known_ != object_.fields().size()) Fail(absl::StrCat(name_, " has unknown members"));
    return status_;
  }

 private:
  const Struct& object_;
  const std::string name_;
  size_t known_ = 0;
  absl::Status status_;
};

absl::StatusOr<DraftRule> ParseDrafts(const Struct& object, const std::string& name) {
  Members members(object, name + "drafts.");
  DraftRule rule;
  if (!v1::VerifyMode_Parse(members.Text("mode"), &rule.mode)) members.Fail(name + "drafts.mode is unknown");
  const Value* const parents = members.Find("parents");
  if (parents == nullptr || !parents->has_list_value()) return Unknown(name + "drafts.parents is no list");
  std::vector<uint32_t> depths;
  for (const Value& value : parents->list_value().values()) {
    const auto end = static_cast<double>(depths.size());
    const double number = value.has_number_value() ? value.number_value() : end;
    if (!(number >= -1 && number < end) || number != static_cast<int32_t>(number)) {
      return Unknown(name + "drafts.parents has a parent that is no draft before it");
    }
    const auto parent = static_cast<int32_t>(number);
    depths.push_back(parent < 0 ? 1 : depths[static_cast<size_t>(parent)] + 1);
    rule.parents.push_back(parent);
  }
  if (depths.empty() || depths.size() > kMostDrafts) return Unknown(name + "drafts.parents has none or too many");
  rule.depth = *std::ranges::max_element(depths);
  if (!rule.is_chain() && rule.mode != v1::VERIFY_MODE_COUPLED) {
    return Unknown(name + "drafts.mode of a tree is COUPLED");
  }
  for (size_t i = 0; i < rule.parents.size(); ++i) {
    if (std::ranges::count(rule.parents, rule.parents[i]) > Model::kListed) {
      return Unknown(absl::StrCat(name, "drafts.parents: at most ", Model::kListed, " drafts have one parent"));
    }
  }
  if (absl::Status status = members.End(); !status.ok()) return status;
  return rule;
}

absl::StatusOr<Setting> ParseSetting(const Struct& object, size_t number) {
  const std::string name = absl::StrCat("settings[", number, "].");
  Members members(object, name);
  Setting setting;
  setting.name = members.Text("name");
  setting.texts = members.Number("texts", 1, kMostTexts);
  setting.prompt = members.Number("prompt", 2, kMostPlaces / 2);
  if (const Value* const dtype = members.Find("dtype")) {
    if (dtype->string_value() != "bf16") return Unknown(name + "dtype is not bf16");
    setting.dtype = v1::DTYPE_BF16;
  }
  const Value* const parameters = members.Find("parameters");
  std::string json;
  if (parameters == nullptr || !parameters->has_struct_value() ||
      !google::protobuf::util::MessageToJsonString(parameters->struct_value(), &json).ok() ||
      !google::protobuf::util::JsonStringToMessage(json, &setting.parameters).ok()) {
    return Unknown(name + "parameters are no SamplingParameters");
  }
  if (const Value* const mask = members.Find("mask")) {
    Members rule(mask->struct_value(), name + "mask.");
    setting.mask.emplace();
    setting.mask->period = rule.Number("period", 1, 1024);
    setting.mask->hidden = rule.Number("hidden", 0, setting.mask->period - 1);
    if (absl::Status status = rule.End(); !status.ok()) return status;
  }
  if (const Value* const drafts = members.Find("drafts")) {
    auto rule = ParseDrafts(drafts->struct_value(), name);
    if (!rule.ok()) return rule.status();
    setting.drafts = *std::move(rule);
  }
  if (setting.mask && setting.drafts) return Unknown(name + "mask and drafts exclude each other");
  if (absl::Status status = members.End(); !status.ok()) return status;
  return setting;
}

std::string Sixteen(absl::string_view what, uint32_t text) {
  const service::ReceiptHash hash = service::HashBytes(absl::StrCat("sortition proof ", what, " ", text));
  return std::string(hash.begin(), hash.begin() + 16);
}

}  // namespace

absl::StatusOr<Settings> Settings::Parse(std::string_view json) {
  Struct object;
  if (!google::protobuf::util::JsonStringToMessage(std::string(json), &object).ok()) return Unknown("no JSON object");
  Members members(object, "");
  if (members.Text("format") != kFormat) return absl::InvalidArgumentError("unknown format: settings.json");
  if (members.Number("law_version", 0, ~uint32_t{0}) != law::kLawVersion)
    return absl::InvalidArgumentError("other law: settings.json is of another version");
  const Value* const model = members.Find("model");
  if (model == nullptr) return Unknown("no model");
  Members described(model->struct_value(), "model.");
  Settings settings(Model(described.Number("seed", 0, ~uint32_t{0})));
  if (described.Text("name") != "mixed octaves" ||
      described.Number("vocabulary", 0, ~uint32_t{0}) != Model::kVocabulary ||
      absl::HexStringToBytes(described.Text("contexts_sha256")) !=
          std::string(reinterpret_cast<const char*>(settings.model_.ContextsHash().data()), 32)) {
    return absl::InvalidArgumentError("other model: the rows of settings.json have another hash");
  }
  if (absl::Status status = described.End(); !status.ok()) return status;
  settings.json_ = json;
  settings.tokens_ = members.Number("tokens", 1, kMostPlaces / 2);
  const Value* const list = members.Find("settings");
  if (list == nullptr || list->list_value().values().empty()) return Unknown("no settings");
  for (const Value& value : list->list_value().values()) {
    auto setting = ParseSetting(value.struct_value(), settings.list_.size());
    if (!setting.ok()) return setting.status();
    settings.setting_of_.insert(settings.setting_of_.end(), setting->texts,
                                static_cast<uint32_t>(settings.list_.size()));
    settings.list_.push_back(*std::move(setting));
  }
  if (settings.texts() > kMostTexts) return Unknown("too many texts");
  if (absl::Status status = members.End(); !status.ok()) return status;
  return settings.First(kAllTexts);
}

Settings Settings::First(uint32_t each) const {
  Settings some = *this;
  some.drawn_.clear();
  uint32_t first = 0;
  for (const Setting& setting : list_) {
    for (uint32_t i = 0; i < std::min(each, setting.texts); ++i) some.drawn_.push_back(first + i);
    first += setting.texts;
  }
  return some;
}

const Settings& Settings::Own() {
  static const Settings* const own = [] {
    auto parsed = Parse(kOwn);
    SORTITION_CHECK(parsed.ok());
    return new Settings(*std::move(parsed));
  }();
  return *own;
}

client::SequenceOptions Settings::OptionsOf(uint32_t text) const {
  const Setting& setting = Of(text);
  client::SequenceOptions options;
  options.request_id = absl::StrCat("text ", text);
  options.parameters = setting.parameters;
  options.seed = kFirstSeed + text;
  options.vocabulary_size = Model::kVocabulary;
  options.prompt = model_.Prompt(text, setting.prompt);
  return options;
}

std::string SaltOf(uint32_t text) { return Sixteen("salt", text); }
std::string NonceOf(uint32_t text) { return Sixteen("nonce", text); }

std::string RowBytes(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens) {
  std::vector<float> row(Model::kVocabulary);
  settings.model().WriteRow(Model::ContextOf(tokens), text, static_cast<uint32_t>(tokens.size()), row);
  const char* const bytes = reinterpret_cast<const char*>(row.data());
  if (settings.Of(text).dtype == v1::DTYPE_F32) return std::string(bytes, row.size() * sizeof(float));
  std::string high;
  for (size_t i = 0; i < row.size(); ++i) high.append(bytes + i * sizeof(float) + 2, 2);
  return high;
}

NextStep::NextStep(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens) {
  const Setting& setting = settings.Of(text);
  const auto position = static_cast<uint32_t>(tokens.size());
  logits_ = RowBytes(settings, text, tokens);
  if (setting.mask) AddMask(*setting.mask, position);
  const uint32_t missing = settings.tokens() + setting.prompt - position;
  if (setting.drafts && missing > setting.drafts->depth) AddDrafts(settings, text, tokens, *setting.drafts);
  row_.logits = logits_.data();
}

void NextStep::AddMask(const MaskRule& rule, uint32_t position) {
  mask_.resize(Model::kVocabulary / 32);
  for (uint32_t token = 0; token < Model::kVocabulary; ++token) {
    if ((token + position) % rule.period >= rule.hidden) mask_[token / 32] |= uint32_t{1} << token % 32;
  }
  row_.allowed_bits = mask_.data();
}

void NextStep::AddDrafts(const Settings& settings, uint32_t text, std::span<const uint32_t> tokens,
                         const DraftRule& rule) {
  const Model& model = settings.model();
  std::vector<std::vector<uint32_t>> paths;  // each draft's tokens before it and itself
  std::vector<uint32_t> followers(rule.parents.size() + 1);
  for (const int32_t parent : rule.parents) {
    std::vector<uint32_t> path =
        parent < 0 ? std::vector(tokens.end() - 2, tokens.end()) : paths[static_cast<size_t>(parent)];
    const auto likely = model.Likely(Model::ContextOf(path));
    const auto position = static_cast<uint32_t>(tokens.size() + path.size() - 2);
    const uint32_t place = rule.is_chain() ? model.DraftAt(text, position) : followers[size_t(parent + 1)]++;
    if (rule.is_chain()) {
      v1::SparseProbabilities& sparse = probabilities_.emplace_back();
      sparse.mutable_tokens()->Add(likely.begin(), likely.end());
      sparse.mutable_probabilities()->Add(Model::kProbabilities.begin(), Model::kProbabilities.end());
    }
    path.push_back(likely[place]);
    draft_tokens_.push_back(likely[place]);
    paths.push_back(path);
  }
  for (const std::vector<uint32_t>& path : paths) {
    std::vector<uint32_t> text_and_drafts(tokens.begin(), tokens.end() - 2);
    text_and_drafts.insert(text_and_drafts.end(), path.begin(), path.end());
    logits_ += RowBytes(settings, text, text_and_drafts);
  }
  drafts_.mode = rule.mode;
  drafts_.tokens = draft_tokens_;
  if (!rule.is_chain()) drafts_.parents = rule.parents;
  drafts_.sparse_probabilities = probabilities_;
  row_.drafts = &drafts_;
}

}  // namespace sortition::archive
