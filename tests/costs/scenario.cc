// Draws scenarios from the contract's descriptor and from options.inc, so that a new option is drawn, too.
#include "tests/costs/scenario.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "kernels/law/options.h"
#include "service/limits.h"

namespace sortition::costs {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr uint64_t kMostListed = 65536;      // elements of a list, with those of lists within it
constexpr uint64_t kMostElements = 1 << 18;  // of all lists
constexpr uint64_t kMostHistory = 1 << 19;   // of one message, which has at most max_field_bytes

constexpr std::string_view kStepOptions[] = {"mask.mask_row",
                                             "mask.uploaded_mask_id",
                                             "mask.allowed_tokens",
                                             "mask.banned_tokens",
                                             "masks",
                                             "truncate_to",
                                             "append_tokens",
                                             "draw_salt",
                                             "checkpoint",
                                             "compact",
                                             "compact.unit_sum",
                                             "compact.sum",
                                             "compact.is_whole",
                                             "requested",
                                             "race",
                                             "draft_row",
                                             "sparse_probabilities",
                                             "return_probabilities",
                                             "timeout",
                                             "priority",
                                             "trace",
                                             "answer_early",
                                             "row_stride_bytes",
                                             "region",
                                             "ready",
                                             "fork.position",
                                             "fork.without_options",
                                             "history",
                                             "choice_index",
                                             "live_vocabulary_size",
                                             "receipts",
                                             "model",
                                             "client",
                                             "close.epoch",
                                             "shard.epoch",
                                             "shard.repeats",
                                             "wire.rows",
                                             "wire.twice",
                                             "wire.unknown",
                                             "wire.unpacked"};

// Samplers in an order that every chain takes.
constexpr std::string_view kSamplers[] = {
#define SAMPLER(Name, name, first, last, greedy, operand, vllm, llama_cpp, hf) #name,
#include "kernels/law/options.inc"
};

void AddPaths(const Descriptor& message, const std::string& path, std::vector<std::string>* paths) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string name = path + std::string(field.name());
    // Phases do not nest.
    if (name.starts_with("phases.parameters.phases")) continue;
    paths->push_back(name);
    if (field.message_type() != nullptr) AddPaths(*field.message_type(), name + ".", paths);
  }
}

bool IsRepeated(std::string_view path) {
  const Descriptor* message = v1::SamplingParameters::descriptor();
  const FieldDescriptor* field = nullptr;
  for (const auto part : absl::StrSplit(std::string(path), '.')) {
    field = message->FindFieldByName(std::string(part));
    message = field->message_type();
  }
  return field->is_repeated();
}

class Draws {
 public:
  Draws(uint64_t seed, uint64_t index, uint64_t work)
      : seed_(WordOf(seed, absl::StrCat("scenario", index))), most_listed_(std::min(work, kMostListed)) {}
  uint64_t most_listed() const { return most_listed_; }
  uint64_t Next() { return WordOf(seed_, absl::StrCat(++count_)); }
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Returns a size from 1 to `most`: uniform in its logarithm, one in three the largest.
  uint64_t Size(uint64_t most) {
    if (most <= 1 || OneIn(3)) return std::max<uint64_t>(most, 1);
    const double log = std::log(static_cast<double>(most)) * static_cast<double>(Below(1 << 20)) / (1 << 20);
    return std::clamp<uint64_t>(static_cast<uint64_t>(std::exp(log)), 1, most);
  }

 private:
  const uint64_t seed_;
  const uint64_t most_listed_;
  uint64_t count_ = 0;
};

// Sets the fields of one message. `path`: its own, which ends with a dot if it is not empty.
class Filler {
 public:
  Filler(const Scenario& scenario, uint32_t live) : scenario_(scenario), live_(live) {}

  void Fill(const std::string& path, uint64_t index, Message* message) {
    const Descriptor& descriptor = *message->GetDescriptor();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const FieldDescriptor& field = *descriptor.field(i);
      const std::string name = path + std::string(field.name());
      if (!scenario_.Has(name)) continue;
      if (field.is_repeated()) {
        FillList(name, index, field, message);
      } else if (field.message_type() != nullptr) {
        Fill(name + ".", index, message->GetReflection()->MutableMessage(message, &field));
      } else {
        SetValue(name, field, message);
      }
    }
  }

 private:
  void FillList(const std::string& path, uint64_t index, const FieldDescriptor& field, Message* message) {
    const Reflection& reflection = *message->GetReflection();
    const uint64_t count = scenario_.Size(path);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      for (const std::string_view sampler : kSamplers) {
        const bool is_on = scenario_.Has(sampler) && message->GetDescriptor()->name() == "Explicit";
        if (is_on) reflection.AddString(message, &field, std::string(sampler));
      }
      return;
    }
    for (uint64_t i = 0; i < count && filled_ < kMostElements; ++i) {
      ++filled_;
      if (field.message_type() != nullptr) {
        Message& part = *reflection.AddMessage(message, &field);
        Fill(path + ".", i, &part);
        FillElement(i, &part);
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
        reflection.AddUInt32(message, &field, TokenOf(path, index, i, count));
      }
    }
  }

  // Sets what an element of a list must have.
  void FillElement(uint64_t index, Message* part) {
    if (auto* const bias = dynamic_cast<v1::LogitBias*>(part)) {
      bias->set_token(static_cast<uint32_t>(live_ - 1 - index % live_));
      bias->set_bias(index % 2 == 0 ? 0.5f : -0.5f);
    }
  }

  // Elements of one list differ, and so do lists of one list: in their last tokens.
  uint32_t TokenOf(const std::string& path, uint64_t list, uint64_t i, uint64_t count) const {
    const bool is_string =
        path.ends_with(".tokens") || path.ends_with(".begin") || path.ends_with(".end") || path.ends_with(".then");
    if (!is_string) {
      const bool from_above = path.ends_with("banned_token_ids");
      return static_cast<uint32_t>(from_above ? live_ - 1 - i % live_ : i % live_);
    }
    if (count - i > 20) return 0;  // 20 digits number all lists
    uint64_t rest = list;
    for (uint64_t place = count - 1; place > i; --place) rest /= live_;
    return static_cast<uint32_t>(rest % live_);
  }

  void SetValue(const std::string& path, const FieldDescriptor& field, Message* message) const {
    const Reflection& reflection = *message->GetReflection();
    const uint64_t word = WordOf(scenario_.seed, path);
    std::string_view option = path;
    absl::string_view name = path;
    if (absl::ConsumePrefix(&name, "phases.parameters.")) option = std::string_view(name.data(), name.size());
    const law::NumberOption* const number = law::FindNumber(option);
    double least = 0, most = 1000;
    if (number != nullptr) {
      least = number->least;
      most = number->most.limit.empty() ? number->most.value : LimitNamed(number->most.limit);
    }
    const double part = static_cast<double>(word >> 40) / (1 << 24);
    const double drawn[] = {most, least + (most - least) * part, std::max(least, most * std::exp(-9 * part))};
    const double value = drawn[word % 3];
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_FLOAT:
        return reflection.SetFloat(message, &field, static_cast<float>(value));
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection.SetUInt32(message, &field, static_cast<uint32_t>(value));
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection.SetUInt64(message, &field, word);
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.SetBool(message, &field, true);
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection.SetEnumValue(
            message, &field,
            field.enum_type()->value(1 + static_cast<int>(word % (field.enum_type()->value_count() - 1)))->number());
      default:
        return;
    }
  }

  static double LimitNamed(std::string_view name) {
    for (const service::LimitDescription& limit : service::DescribeLimits({})) {
      if (limit.name == name) return static_cast<double>(limit.value);
    }
    return 1;
  }

  const Scenario& scenario_;
  const uint64_t live_;
  uint64_t filled_ = 0;
};

// Sets the field and the messages that it is in.
void AddOption(const std::string& path, Draws* draws, Scenario* scenario) {
  uint64_t most = draws->most_listed();
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('.', end + 1);
    const std::string part = path.substr(0, end);
    scenario->options.insert(part);
    if (!IsRepeated(part)) continue;
    const uint64_t drawn = draws->Size(part == "phases" ? service::kMaxPhases : most);
    most = std::max<uint64_t>(most / scenario->sizes.try_emplace(part, drawn).first->second, 1);
  }
}

// Sets every list of a text, at its limit, with phases that change one: each phase has a copy of the others.
void AddListsOfPhases(Draws* draws, Scenario* scenario) {
  const uint64_t most = draws->most_listed();
  for (const char* const path : {"phases.begin", "phases.end", "phases.parameters.banned_token_ids", "logit_bias",
                                 "banned_token_ids", "allowed_token_ids", "bad_words.tokens"}) {
    AddOption(path, draws, scenario);
  }
  for (const char* const list : {"logit_bias", "banned_token_ids", "allowed_token_ids", "bad_words"}) {
    scenario->sizes[list] = most;
  }
  for (const char* const list :
       {"bad_words.tokens", "phases.begin", "phases.end", "phases.parameters.banned_token_ids"}) {
    scenario->sizes[list] = 1;
  }
}

}  // namespace

uint64_t WordOf(uint64_t seed, std::string_view key) {
  uint64_t word = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  for (const char c : key) word = (word ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

bool HasOptions(Kind kind) {
  return kind != Kind::kHello && kind != Kind::kUploadMask && kind != Kind::kReleaseMask &&
         kind != Kind::kAttachMemory && kind != Kind::kBringAnswer;
}

Kind Scenario::task() const {
  static constexpr Kind kTasks[] = {Kind::kDraw, Kind::kScore, Kind::kVerifyDraft, Kind::kVerifyTree};
  if (kind == Kind::kRetry) return Kind::kDraw;
  return is_sharded() ? kTasks[WordOf(seed, "task") % std::size(kTasks)] : kind;
}

uint64_t Scenario::Size(std::string_view name) const {
  const auto size = sizes.find(std::string(name));
  return size == sizes.end() ? 1 : std::max<uint64_t>(size->second, 1);
}

std::string Scenario::Text() const {
  std::string text = absl::StrCat(std::string(kind_name()), " seed=", seed);
  for (const auto& [name, size] : sizes) absl::StrAppend(&text, " ", name, "=", size);
  for (const std::string& option : options) absl::StrAppend(&text, " +", option);
  return text;
}

std::optional<Scenario> Scenario::Parse(std::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(std::string(text), ' ', absl::SkipEmpty());
  if (words.empty()) return std::nullopt;
  const auto* const kind = std::ranges::find(kKindNames, words[0]);
  if (kind == std::end(kKindNames)) return std::nullopt;
  Scenario scenario;
  scenario.kind = static_cast<Kind>(kind - std::begin(kKindNames));
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    uint64_t number = 0;
    if (word[0] == '+') {
      scenario.options.insert(word.substr(1));
    } else if (equals == std::string::npos || !absl::SimpleAtoi(word.substr(equals + 1), &number)) {
      return std::nullopt;
    } else if (word.starts_with("seed=")) {
      scenario.seed = number;
    } else {
      scenario.sizes[word.substr(0, equals)] = number;
    }
  }
  return scenario;
}

const std::vector<std::string>& ParameterPaths() {
  static const auto* const paths = [] {
    auto* const all = new std::vector<std::string>();
    AddPaths(*v1::SamplingParameters::descriptor(), "", all);
    return all;
  }();
  return *paths;
}

Scenario DrawScenario(uint64_t seed, uint64_t index, uint64_t work, const std::set<std::string>& with) {
  Draws draws(seed, index, work);
  Scenario scenario;
  scenario.kind = static_cast<Kind>(index % std::size(kKindNames));
  scenario.seed = draws.Next();
  const std::vector<std::string>& paths = ParameterPaths();
  const uint64_t turn = index / std::size(kKindNames) + index;
  AddOption(paths[turn % paths.size()], &draws, &scenario);
  const uint64_t more = draws.OneIn(8) ? 40 : draws.Below(8);
  for (uint64_t i = 0; i < more; ++i) {
    // One in two is a field of the first level, of which a nested message has many.
    std::string path = paths[draws.Below(paths.size())];
    while (draws.OneIn(2) && path.find('.') != std::string::npos) path = paths[draws.Below(paths.size())];
    AddOption(path, &draws, &scenario);
  }
  scenario.options.insert(std::string(kStepOptions[turn % std::size(kStepOptions)]));
  const uint64_t steps = draws.Below(6);
  for (uint64_t i = 0; i < steps; ++i) {
    scenario.options.insert(std::string(kStepOptions[draws.Below(std::size(kStepOptions))]));
  }
  for (const char* const option : {"compact.unit_sum", "compact.sum", "compact.is_whole"}) {
    if (scenario.Has(option)) scenario.options.insert("compact");
  }
  if (!draws.OneIn(4)) scenario.options.insert("history");
  if (draws.OneIn(10)) AddListsOfPhases(&draws, &scenario);
  for (const std::string& option : with) {
    if (std::ranges::find(paths, option) != paths.end()) {
      AddOption(option, &draws, &scenario);
    } else {
      scenario.options.insert(option);
    }
  }
  if (!HasOptions(scenario.kind)) scenario.options = {"client"};
  std::map<std::string, uint64_t>& sizes = scenario.sizes;
  const uint64_t most_tokens = std::min<uint64_t>(16 * work, (1 << 20) - 1);
  sizes["vocabulary"] = draws.Size(draws.OneIn(4) ? most_tokens : std::min<uint64_t>(most_tokens, 1 << 17));
  sizes["history"] = draws.Size(std::min(work, kMostHistory));
  sizes["distinct"] = draws.Size(std::min(work, sizes["vocabulary"]));
  sizes["rows"] = draws.OneIn(2) ? 1 : draws.Size(std::min<uint64_t>(work, 1024));
  sizes["drafts"] = draws.Size(64);
  sizes["scored"] = draws.Size(128);
  for (const char* const name : {"banned", "allowed", "sparse"}) sizes[name] = draws.Size(draws.most_listed());
  sizes["append"] = draws.Size(std::min<uint64_t>(work, 16384));
  sizes["truncate"] = draws.Size(std::min<uint64_t>(work, 16384));
  sizes["requested"] = draws.Size(std::min<uint64_t>(work, 1000));
  for (const char* const name : {"compact.first", "compact.others"}) {
    sizes[name] = draws.Size(std::min<uint64_t>(work, 4096));
  }
  sizes["shards"] = draws.Size(service::kMaxShards);
  sizes["wire"] = draws.Size(work);
  uint64_t listed = 64;
  for (const auto& [name, size] : sizes) {
    if (scenario.Has(name)) listed += size;
  }
  sizes["rows"] = std::clamp<uint64_t>(work / listed, 1, sizes["rows"]);
  return scenario;
}

void FillParameters(const Scenario& scenario, uint32_t live_vocabulary, v1::SamplingParameters* parameters) {
  Filler(scenario, live_vocabulary).Fill("", 0, parameters);
}

std::optional<Scenario> Repaired(const Scenario& scenario, const v1::Error& error, uint64_t attempt) {
  // "step.rows[3].verify_draft.masks[1].banned_tokens" becomes "step.rows.verify_draft.masks.banned_tokens".
  std::string field;
  bool is_index = false;
  for (const char c : error.field()) {
    is_index = c == '[' || (is_index && c != ']');
    if (!is_index && c != ']') field += c;
  }
  const std::vector<std::string>& paths = ParameterPaths();
  Scenario changed = scenario;
  absl::string_view rest = field;
  // All lists together are too long.
  if (error.reason() == v1::TOO_MANY && field.ends_with("parameters")) {
    for (auto& [name, size] : changed.sizes) size = std::max<uint64_t>(size - size / 4, 1);
    return changed;
  }
  // The longest end of the field that is the name of an option or of a part of one.
  for (bool more = true; more;) {
    const std::string path(rest);
    const bool is_parameter = std::ranges::find(paths, path) != paths.end();
    if (error.reason() == v1::MISSING_FIELD && is_parameter && !scenario.Has(path)) {
      Draws draws(scenario.seed, attempt, 16);
      AddOption(path, &draws, &changed);
      return changed;
    }
    for (std::string name = path; !name.empty();
         name.resize(name.rfind('.') == std::string::npos ? 0 : name.rfind('.'))) {
      if (!scenario.Has(name)) continue;
      const auto size = changed.sizes.find(name);
      if (error.reason() == v1::TOO_MANY && size != changed.sizes.end() && size->second > 1) {
        uint64_t limit = 0;
        const std::vector<std::string> words = absl::StrSplit(error.limit(), ' ');
        if (!absl::SimpleAtoi(words.back(), &limit) || limit == 0) limit = size->second;
        size->second = std::min(limit, size->second / 2);
        return changed;
      }
      std::erase_if(changed.options,
                    [&](const std::string& option) { return option == name || option.starts_with(name + "."); });
      return changed;
    }
    const size_t dot = rest.find('.');
    more = dot != absl::string_view::npos;
    if (more) rest.remove_prefix(dot + 1);
  }
  const bool masks_all = error.reason() == v1::NO_LIVE_TOKEN || error.reason() == v1::LOGIT_TOO_LARGE ||
                         error.reason() == v1::CONTRADICTION || error.reason() == v1::OUT_OF_RANGE;
  if (!masks_all || changed.options.empty()) return std::nullopt;
  auto some = changed.options.begin();
  std::advance(some,
               static_cast<ptrdiff_t>(WordOf(scenario.seed, absl::StrCat("drop", attempt)) % changed.options.size()));
  changed.options.erase(some);
  return changed;
}

}  // namespace sortition::costs
