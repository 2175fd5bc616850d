// Fields by reflection of the messages that have them.
#include "service/policy/parameter_limit.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"
#include "kernels/law/options.h"
#include "service/wire/compile_history_options.h"
#include "service/wire/parameter_table.h"

namespace sortition::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Path = std::vector<const FieldDescriptor*>;

// Penalties have a window, of their scope, without the message too.
constexpr absl::string_view kScopeWindow = "penalty_scope.window";

law::Effect EffectOf(const std::string& name) {
  const law::NumberOption* const number = law::FindNumber(name);
  return number == nullptr ? law::Effect::kNone : number->effect;
}

// Returns true if 0 stands for all tokens: it is the largest value then.
bool ZeroIsAll(const std::string& name) {
  const law::NumberOption* const number = law::FindNumber(name);
  return number != nullptr && number->zero_is_all();
}

// Returns the fields from the message down to the one that is named; empty if there is no such field.
Path FindField(const Descriptor& message, const std::string& name) {
  Path path;
  const Descriptor* within = &message;
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    const FieldDescriptor* field = within == nullptr ? nullptr : within->FindFieldByName(std::string(part));
    if (field == nullptr) return {};
    path.push_back(field);
    within = field->is_repeated() ? nullptr : field->message_type();
  }
  return path;
}

bool IsNumber(const FieldDescriptor& field) {
  return !field.is_repeated() &&
         (field.type() == FieldDescriptor::TYPE_FLOAT || field.type() == FieldDescriptor::TYPE_UINT32);
}

bool Has(const Message& message, const FieldDescriptor& field) {
  const auto* reflection = message.GetReflection();
  return field.is_repeated() ? reflection->FieldSize(message, &field) > 0 : reflection->HasField(message, &field);
}

// Returns the message that has the last field of the path; null if one above it is not set.
const Message* Parent(const Message& message, const Path& path) {
  const Message* parent = &message;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    if (!Has(*parent, *path[i])) return nullptr;
    parent = &parent->GetReflection()->GetMessage(*parent, path[i]);
  }
  return parent;
}

Message* MutableParent(const Path& path, Message* message) {
  for (size_t i = 0; i + 1 < path.size(); ++i) message = message->GetReflection()->MutableMessage(message, path[i]);
  return message;
}

void SetNumber(const Path& path, double value, Message* message) {
  Message* const parent = MutableParent(path, message);
  const auto* reflection = parent->GetReflection();
  if (path.back()->type() == FieldDescriptor::TYPE_FLOAT) {
    reflection->SetFloat(parent, path.back(), static_cast<float>(value));
  } else {
    reflection->SetUInt32(parent, path.back(), static_cast<uint32_t>(value));
  }
}

// Returns the value in force of a number of `parent`, which has it or not.
double NumberOf(const Message& parent, const FieldDescriptor& field, const std::string& name) {
  const auto* reflection = parent.GetReflection();
  if (!reflection->HasField(parent, &field)) {
    const law::NumberOption* const number = law::FindNumber(name);
    return number == nullptr ? 0 : number->value;
  }
  if (field.type() == FieldDescriptor::TYPE_FLOAT) return reflection->GetFloat(parent, &field);
  return reflection->GetUInt32(parent, &field);
}

double RankOf(double value, const std::string& name) {
  return value == 0 && ZeroIsAll(name) ? std::numeric_limits<double>::infinity() : value;
}

// Returns a bound in the precision of its field: 0.1 bounds a float of 0.1.
double BoundOf(double bound, const FieldDescriptor& field) {
  return field.type() == FieldDescriptor::TYPE_FLOAT ? static_cast<float>(bound) : bound;
}

enum class Side : uint8_t { kWithin, kBelow, kAbove, kBanned };

// Compares the value in force, or the set value alone. A NaN is left to those who check ranges.
Side Compare(const v1::ParameterLimit& limit, const Message& message, const Path& path, bool counts_defaults) {
  const Message* const parent = Parent(message, path);
  const FieldDescriptor& field = *path.back();
  const bool has = parent != nullptr && Has(*parent, field);
  if (limit.banned()) return has ? Side::kBanned : Side::kWithin;
  if (!has && !counts_defaults) return Side::kWithin;
  std::optional<double> number;
  if (limit.field() == kScopeWindow) {
    number = PenaltyWindow(static_cast<const v1::SamplingParameters&>(message));
  } else if (parent != nullptr) {
    number = NumberOf(*parent, field, limit.field());
  }
  if (!number) return Side::kWithin;
  const double value = RankOf(*number, limit.field());
  if (limit.has_min() && value < BoundOf(limit.min(), field)) return Side::kBelow;
  if (limit.has_max() && value > BoundOf(limit.max(), field)) return Side::kAbove;
  return Side::kWithin;
}

Refusal Beyond(const v1::ParameterLimit& limit, Side side, std::string field) {
  switch (side) {
    case Side::kBelow:
      return {Reason::kOutOfRange, std::move(field), absl::StrCat(">= ", limit.min()),
              "the value in force is below the limit of the operator's policy"};
    case Side::kAbove:
      return {Reason::kOutOfRange, std::move(field), absl::StrCat("<= ", limit.max()),
              "the value in force is above the limit of the operator's policy"};
    case Side::kBanned:
      return {Reason::kOutOfRange, std::move(field), "absent", "the operator's policy bans the field"};
    case Side::kWithin:
      break;
  }
  SORTITION_CHECK(false);
}

absl::Status Wrong(const v1::ParameterLimit& limit, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("limits: ", limit.field(), ": ", what));
}

std::string PhaseField(absl::string_view path, int phase, absl::string_view field) {
  return absl::StrCat(path, ".phases[", phase, "].parameters.", field);
}

// Returns why a phase sets a value beyond the limit.
std::optional<Refusal> CheckPhases(const v1::ParameterLimit& limit, absl::string_view path,
                                   const v1::SamplingParameters& parameters) {
  const Path inner = FindField(*parameters.GetDescriptor(), limit.field());
  const std::string& option = inner.front()->name();
  // An option of the whole text is refused in phases by its name.
  if (const auto* described = FindParameter(option); described == nullptr || !described->in_phases) return std::nullopt;
  for (int i = 0; i < parameters.phases_size(); ++i) {
    const v1::SamplingParameters& within = parameters.phases(i).parameters();
    // A message that a phase sets replaces the sequence's as a whole, so its absent fields have their defaults.
    const Side side = Compare(limit, within, inner, /*counts_defaults=*/inner.size() > 1);
    if (side != Side::kWithin) return Beyond(limit, side, PhaseField(path, i, limit.field()));
  }
  return std::nullopt;
}

// Applies the limit to the sequence's parameters outside of its phases.
std::optional<Refusal> ApplyOutside(const v1::ParameterLimit& limit, absl::string_view path,
                                    v1::SamplingParameters* parameters, v1::PolicyEffect* effect) {
  const Path field = FindField(*parameters->GetDescriptor(), limit.field());
  const Side side = Compare(limit, *parameters, field, /*counts_defaults=*/true);
  if (side == Side::kWithin) return std::nullopt;
  if (limit.violation() != v1::ParameterLimit::VIOLATION_APPLY) {
    return Beyond(limit, side, absl::StrCat(path, ".", limit.field()));
  }
  if (side == Side::kBanned) {
    Message* const parent = MutableParent(field, parameters);
    parent->GetReflection()->ClearField(parent, field.back());
    effect->add_removed(limit.field());
    return std::nullopt;
  }
  const double bound = side == Side::kBelow ? limit.min() : limit.max();
  SetNumber(field, bound, parameters);
  SetNumber(field, bound, effect->mutable_applied());
  return std::nullopt;
}

// Returns the limit of min_keep that follows from a filter's, if one does. `has_own`: the policy limits min_keep.
std::optional<v1::ParameterLimit> LimitOfMinKeep(const v1::ParameterLimit& limit, bool has_own) {
  const law::Effect effect = EffectOf(limit.field());
  const bool counts = effect == law::Effect::kCounts && limit.has_max();
  const bool cuts_low =
      effect == law::Effect::kFewerBelow && limit.has_max() && (limit.max() < 1 || ZeroIsAll(limit.field()));
  const bool cuts_high = effect == law::Effect::kFewerAbove && limit.has_min() && limit.min() > 0;
  if (!counts && (has_own || !(cuts_low || cuts_high))) return std::nullopt;
  v1::ParameterLimit implied;
  implied.set_field("min_keep");
  implied.set_max(counts ? limit.max() : 1);
  implied.set_violation(limit.violation());
  return implied;
}

// Returns the limit of dynamic_temperature.range about a temperature that the limit of `temperature` allows.
v1::ParameterLimit LimitOfRange(const v1::ParameterLimit& limit, float temperature) {
  const auto highest = static_cast<float>(limit.has_max() ? limit.max() : std::numeric_limits<float>::max());
  const auto lowest = static_cast<float>(limit.has_min() ? limit.min() : 0);
  float range = std::max(highest - temperature, 0.0f);
  if (lowest > 0) range = std::clamp(temperature - lowest, 0.0f, range);
  const auto passes = [&] { return temperature + range > highest || (lowest > 0 && temperature - range < lowest); };
  while (range > 0 && passes()) range = std::nextafter(range, 0.0f);
  v1::ParameterLimit implied;
  implied.set_field("dynamic_temperature.range");
  implied.set_max(range);
  implied.set_violation(limit.violation());
  return implied;
}

std::optional<Refusal> ApplyToRange(const v1::ParameterLimit& limit, absl::string_view path,
                                    v1::SamplingParameters* parameters, v1::PolicyEffect* effect) {
  const float temperature = parameters->has_temperature() ? parameters->temperature() : 1;
  if (auto refusal = ApplyOutside(LimitOfRange(limit, temperature), path, parameters, effect)) return refusal;
  for (int i = 0; i < parameters->phases_size(); ++i) {
    const v1::SamplingParameters& within = parameters->phases(i).parameters();
    if (!within.has_temperature() && !within.has_dynamic_temperature()) continue;
    const float own = within.has_temperature() ? within.temperature() : temperature;
    const float range = within.has_dynamic_temperature() ? within.dynamic_temperature().range()
                                                         : parameters->dynamic_temperature().range();
    const v1::ParameterLimit implied = LimitOfRange(limit, own);
    if (range <= static_cast<float>(implied.max())) continue;
    const bool is_own = within.has_dynamic_temperature();
    return Beyond(implied, Side::kAbove, PhaseField(path, i, is_own ? implied.field() : "temperature"));
  }
  return std::nullopt;
}

// Returns true if a bound is a value that the field can have.
bool Fits(double bound, const FieldDescriptor& field) {
  if (!std::isfinite(bound)) return false;
  if (field.type() == FieldDescriptor::TYPE_FLOAT) return std::abs(bound) <= std::numeric_limits<float>::max();
  return bound >= 0 && bound <= std::numeric_limits<uint32_t>::max() && bound == std::floor(bound);
}

}  // namespace

void SetField(const std::string& field, double value, v1::SamplingParameters* parameters) {
  SetNumber(FindField(*parameters->GetDescriptor(), field), value, parameters);
}

absl::Status CheckLimit(const v1::ParameterLimit& limit) {
  if (limit.field().empty()) return absl::InvalidArgumentError("limits: field: must be set");
  const Path path = FindField(*v1::SamplingParameters::descriptor(), limit.field());
  if (path.empty()) return Wrong(limit, "SamplingParameters has no such field");
  if (path.size() > 1 && path.front()->name() == "phases") {
    return Wrong(limit, "phases are limited as a whole, or by the parameters that they set");
  }
  if (!v1::ParameterLimit::Violation_IsValid(limit.violation())) return Wrong(limit, "violation: unknown value");
  if (limit.banned()) {
    return limit.has_min() || limit.has_max() ? Wrong(limit, "banned excludes min and max") : absl::OkStatus();
  }
  if (!limit.has_min() && !limit.has_max()) return Wrong(limit, "needs min, max or banned");
  if (!IsNumber(*path.back())) return Wrong(limit, "is no number; it can only be banned");
  for (const auto& [has, bound] : {std::pair(limit.has_min(), limit.min()), std::pair(limit.has_max(), limit.max())}) {
    if (has && !Fits(bound, *path.back())) return Wrong(limit, absl::StrCat(bound, " is no value of the field"));
  }
  if (limit.has_max() && limit.max() == 0 && ZeroIsAll(limit.field())) {
    return Wrong(limit, "0 is no max: it stands for all tokens");
  }
  if (limit.has_min() && limit.has_max() && limit.min() > limit.max()) return Wrong(limit, "min is above max");
  return absl::OkStatus();
}

bool SetsBeyond(const v1::ParameterLimit& limit, const v1::SamplingParameters& parameters) {
  const Path path = FindField(*parameters.GetDescriptor(), limit.field());
  return Compare(limit, parameters, path, /*counts_defaults=*/false) != Side::kWithin;
}

std::optional<Refusal> ApplyLimit(const v1::ParameterLimit& limit, absl::string_view path,
                                  v1::SamplingParameters* parameters, v1::PolicyEffect* effect) {
  if (auto refusal = CheckPhases(limit, path, *parameters)) return refusal;
  return ApplyOutside(limit, path, parameters, effect);
}

std::optional<Refusal> ApplyImplied(const ParameterLimits& limits, absl::string_view path,
                                    v1::SamplingParameters* parameters, v1::PolicyEffect* effect) {
  const bool has_own = std::ranges::any_of(limits, [](const auto& limit) { return limit.field() == "min_keep"; });
  for (const v1::ParameterLimit& limit : limits) {
    std::optional<Refusal> refusal;
    if (const auto implied = LimitOfMinKeep(limit, has_own)) refusal = ApplyLimit(*implied, path, parameters, effect);
    if (limit.field() == "temperature" && !limit.banned()) refusal = ApplyToRange(limit, path, parameters, effect);
    if (!refusal) continue;
    refusal->message = absl::StrCat("the value in force passes the operator's limit of ", limit.field());
    return refusal;
  }
  return std::nullopt;
}

}  // namespace sortition::service
