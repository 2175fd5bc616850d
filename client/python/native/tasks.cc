// Converts sortition.Drafts to the client's drafts.
#include "client/python/native/tasks.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

[[noreturn]] void ValueError(const std::string& text) { throw nb::value_error(text.c_str()); }

template <typename Value>
Value Cast(nb::handle object, const std::string& name, const char* what) {
  Value value;
  if (nb::try_cast<Value>(object, value)) return value;
  PyErr_Clear();
  throw nb::type_error(absl::StrCat(name, ": ", what).c_str());
}

std::vector<uint32_t> Tokens(nb::handle object, const std::string& name) {
  return Cast<std::vector<uint32_t>>(object, name, "a list of token ids");
}

v1::VerifyMode ToVerifyMode(nb::handle object, const std::string& name) {
  const auto mode = Cast<std::string>(object, name, "a string");
  if (mode == "coupled") return v1::VERIFY_MODE_COUPLED;
  if (mode == "rejection") return v1::VERIFY_MODE_REJECTION;
  if (mode == "greedy") return v1::VERIFY_MODE_GREEDY;
  if (mode == "block") return v1::VERIFY_MODE_BLOCK;
  ValueError(absl::StrCat(name, ": \"coupled\", \"rejection\", \"block\" or \"greedy\""));
}

v1::DraftSampling ToDraftSampling(nb::handle object, const std::string& name) {
  if (object.is_none()) return v1::DRAFT_SAMPLING_UNSPECIFIED;
  const auto sampling = Cast<std::string>(object, name, "a string");
  if (sampling == "without_replacement") return v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT;
  if (sampling == "with_replacement") return v1::DRAFT_SAMPLING_WITH_REPLACEMENT;
  ValueError(absl::StrCat(name, ": \"without_replacement\" or \"with_replacement\""));
}

// Returns the list's element for row `index`; None without a list.
nb::object At(nb::handle list, size_t index) { return list.is_none() ? nb::object(nb::none()) : list[index]; }

void CheckCount(nb::handle list, size_t count, const char* name) {
  if (list.is_none() || nb::len(list) == count) return;
  ValueError(absl::StrCat(name, ": ", nb::len(list), " entries for ", count, " sequences"));
}

}  // namespace

Tasks::Tasks(nb::tuple lists, size_t count) {
  const nb::handle drafts = lists[0], scored = lists[1], banned = lists[2], draw_salts = lists[3];
  CheckCount(drafts, count, "drafts");
  CheckCount(scored, count, "scored");
  CheckCount(banned, count, "banned");
  CheckCount(draw_salts, count, "draw_salts");
  if (drafts.is_none() && scored.is_none() && banned.is_none() && draw_salts.is_none()) return;
  tasks_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    Task& task = tasks_[i];
    client::Row& row = task.row;
    const nb::object proposed = At(drafts, i);
    const nb::object given = At(scored, i);
    if (!proposed.is_none() && !given.is_none()) ValueError(absl::StrCat("scored[", i, "]: there are drafts, too"));
    if (!proposed.is_none()) ReadDrafts(proposed, i);
    if (!given.is_none()) {
      const std::string name = absl::StrCat("scored[", i, "]");
      task.tokens = Tokens(given[0], name);
      if (task.tokens.empty()) ValueError(name + ": at least one token");
      for (const nb::handle ids : given[1]) task.requested.push_back(Tokens(ids, name + ".requested"));
      row.scored = task.tokens;
      row.scored_requests = task.requested;
      row.score_race = Cast<bool>(given[2], name + ".race", "a bool");
    }
    positions_.push_back(row.positions());
    masks_.push_back(row.drafts != nullptr ? row.positions() : 1);
    if (const nb::object salt = At(draw_salts, i); !salt.is_none()) {
      row.draw_salt = Cast<uint32_t>(salt, absl::StrCat("draw_salts[", i, "]"), "0 to 65535");
    }
    const nb::object bans = At(banned, i);
    if (bans.is_none()) continue;
    const std::string name = absl::StrCat("banned[", i, "]");
    for (const nb::handle list : bans) task.banned.push_back(Tokens(list, name));
    if (task.banned.size() != masks_[i]) {
      ValueError(absl::StrCat(name, ": ", task.banned.size(), " lists of tokens; the row takes ", masks_[i]));
    }
    row.banned_tokens = task.banned;
  }
}

void Tasks::ReadDrafts(nb::handle object, size_t index) {
  const std::string name = absl::StrCat("drafts[", index, "].");
  Task& task = tasks_[index];
  client::Drafts& drafts = task.drafts;
  task.row.drafts = &drafts;
  task.tokens = Tokens(object.attr("tokens"), name + "tokens");
  drafts.tokens = task.tokens;
  drafts.mode = ToVerifyMode(object.attr("mode"), name + "mode");
  if (const nb::object parents = object.attr("parents"); !parents.is_none()) {
    task.parents = Cast<std::vector<int32_t>>(parents, name + "parents", "a list of indices");
    // An empty list would turn the tree into a draft sequence.
    if (task.parents.size() != task.tokens.size()) ValueError(name + "parents: one for each of the tokens");
    drafts.parents = task.parents;
  }
  for (const nb::handle list : object.attr("sparse_probabilities")) {
    v1::SparseProbabilities& sparse = task.sparse.emplace_back();
    const std::string field = name + "sparse_probabilities";
    for (const uint32_t token : Tokens(list[0], field)) sparse.add_tokens(token);
    for (const float value : Cast<std::vector<float>>(list[1], field, "numbers")) sparse.add_probabilities(value);
  }
  drafts.sparse_probabilities = task.sparse;
  drafts.sampling = ToDraftSampling(object.attr("sampling"), name + "sampling");
  drafts.return_probabilities =
      Cast<bool>(object.attr("return_probabilities"), name + "return_probabilities", "a bool");
  if (const nb::object dense = object.attr("probabilities"); !dense.is_none()) ReadProbabilities(dense, index);
}

void Tasks::ReadProbabilities(nb::handle probabilities, size_t index) {
  const std::string name = absl::StrCat("drafts[", index, "].probabilities");
  Task& task = tasks_[index];
  const Matrix matrix = ReadMatrix(probabilities, name, task.drafts.distributions());
  if (!keep_.empty() && matrix.dtype != draft_dtype_) {
    throw nb::type_error(absl::StrCat(name, ": probabilities of different types in one step").c_str());
  }
  draft_dtype_ = matrix.dtype;
  task.drafts.probabilities = matrix.tensor.data();
  keep_.push_back(matrix.tensor);
}

void Tasks::CheckWidth(uint32_t width) const {
  for (const Tensor& tensor : keep_) {
    if (tensor.shape(1) == width) continue;
    ValueError(absl::StrCat("drafts: rows of ", tensor.shape(1), " probabilities; those of logits have ", width));
  }
}

}  // namespace sortition::python
