// Binds sequences that are sampled on the calling thread.
#include "client/python/native/local.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/python/native/module.h"
#include "client/python/native/results.h"
#include "client/python/native/tasks.h"
#include "client/python/native/tensor.h"
#include "sortition/local_sequence.h"

namespace nb = nanobind;

namespace sortition::python {

LocalHandle::LocalHandle(std::unique_ptr<client::LocalSequence> handle, std::string request_id)
    : request_id_(std::move(request_id)), vocabulary_size_(handle->vocabulary_size()), handle_(std::move(handle)) {}

absl::Status LocalHandle::CheckFree() const {
  if (!is_on_stream_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "sequence \"", request_id_, "\" is in a row of a CudaStream, which steps it until the row is cleared"));
}

client::RowResult LocalHandle::Step(v1::DType dtype, const client::Row& row,
                                    const client::LocalStepOptions& options) const {
  absl::MutexLock lock(&mutex_);
  if (const absl::Status status = CheckFree(); !status.ok()) {
    client::RowError error;
    error.code = status.code();
    error.message = std::string(status.message());
    return error;
  }
  return handle_->Step(dtype, row, options);
}

absl::StatusOr<std::vector<client::RowResult>> LocalHandle::StepOn(
    client::LocalCuda* cuda, v1::DType dtype, const std::vector<const LocalHandle*>& handles,
    const std::vector<client::Row>& rows, CUstream_st* stream, v1::DType draft_dtype) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const Lock lock(handles);
  std::vector<client::LocalSequence*> sequences;
  for (const LocalHandle* handle : handles) {
    if (absl::Status status = handle->CheckFree(); !status.ok()) return status;
    sequences.push_back(handle->handle_.get());
  }
  return cuda->Step(dtype, sequences, rows, stream, draft_dtype);
}

absl::Status LocalHandle::PutOn(client::CudaStream* stream, uint32_t row) const {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckFree(); !status.ok()) return status;
  absl::Status status = stream->Put(row, handle_);
  is_on_stream_ = status.ok();
  return status;
}

void LocalHandle::Leave() const {
  absl::MutexLock lock(&mutex_);
  is_on_stream_ = false;
}

LocalHandle::Lock::Lock(std::vector<const LocalHandle*> handles) ABSL_NO_THREAD_SAFETY_ANALYSIS
    : handles_(std::move(handles)) {
  std::ranges::sort(handles_);
  for (const LocalHandle* handle : handles_) handle->mutex_.Lock();
}

LocalHandle::Lock::~Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (const LocalHandle* handle : handles_) handle->mutex_.Unlock();
}

namespace {

std::shared_ptr<LocalHandle> Wrap(absl::StatusOr<std::unique_ptr<client::LocalSequence>> opened,
                                  std::string request_id) {
  if (!opened.ok()) Raise(opened.status());
  return std::make_shared<LocalHandle>(*std::move(opened), std::move(request_id));
}

std::shared_ptr<LocalHandle> Open(nb::bytes message, std::vector<uint32_t> prompt,
                                  std::optional<uint32_t> start_position) {
  const client::SequenceOptions options = ParseSequence(message, std::move(prompt), start_position);
  return Wrap(client::LocalSequence::Open(options), options.request_id);
}

std::shared_ptr<LocalHandle> Fork(const LocalHandle& parent, nb::bytes message, std::optional<uint32_t> position) {
  client::SequenceOptions options = ParseSequence(message, {}, std::nullopt);
  std::string request_id = options.request_id;
  return Wrap(parent.With([&](client::LocalSequence& from) { return from.Fork(std::move(options), position); }),
              std::move(request_id));
}

// Returns the process's sampler for a device, which is made at the first call. Called without the GIL.
absl::StatusOr<client::LocalCuda*> FindOrMakeCuda(int device) {
  static absl::Mutex mutex;
  static auto& devices = *new std::map<int, std::unique_ptr<client::LocalCuda>>;
  absl::MutexLock lock(&mutex);
  std::unique_ptr<client::LocalCuda>& known = devices[device];
  if (known == nullptr) {
    auto made = client::LocalCuda::Create(device);
    if (!made.ok()) return made.status();
    known = *std::move(made);
  }
  return known.get();
}

void CheckWidth(uint32_t width, uint32_t vocabulary) {
  if (width == vocabulary) return;
  throw nb::value_error(
      ("logits: a row of " + std::to_string(width) + " elements; the vocabulary has " + std::to_string(vocabulary))
          .c_str());
}

std::vector<client::RowResult> StepRows(const nb::list& sequences, nb::handle logits, const Tasks& tasks,
                                        nb::handle allowed, const std::optional<std::string>& dtype, uint64_t stream) {
  const size_t count = nb::len(sequences);
  const Rows rows = ReadRows(logits, count, tasks.positions(), dtype, Cuda::kTaken);
  tasks.CheckWidth(rows.width);
  const Masks masks = ReadMasks(allowed, count, tasks.masks(), rows.width);
  std::vector<const LocalHandle*> handles;
  std::vector<client::Row> steps;
  for (size_t i = 0; i < count; ++i) {
    handles.push_back(&nb::cast<const LocalHandle&>(sequences[i]));
    CheckWidth(rows.width, handles.back()->vocabulary_size());
    client::Row& step = steps.emplace_back(tasks.RowOf(i));
    step.logits = rows.rows[i];
    if (!masks.rows.empty()) step.allowed_bits = masks.rows[i];
  }
  std::vector<client::RowResult> results;
  absl::Status status;
  if (rows.cuda_device) {
    std::vector<const LocalHandle*> sorted = handles;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) throw nb::value_error("sequences: one is named twice");
    nb::gil_scoped_release released;
    const auto cuda = FindOrMakeCuda(*rows.cuda_device);
    auto drawn = cuda.ok() ? LocalHandle::StepOn(*cuda, rows.dtype, handles, steps,
                                                 reinterpret_cast<CUstream_st*>(stream), tasks.draft_dtype())
                           : cuda.status();
    status = drawn.status();
    if (drawn.ok()) results = *std::move(drawn);
  } else {
    nb::gil_scoped_release released;
    results.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      const client::LocalStepOptions options{tasks.draft_dtype(), i};
      results.push_back(handles[i]->Step(rows.dtype, steps[i], options));
    }
  }
  if (!status.ok()) Raise(status);
  return results;
}

nb::object Step(nb::list sequences, nb::handle logits, nb::tuple lists, nb::handle allowed,
                const std::optional<std::string>& dtype, uint64_t stream) {
  const Tasks tasks(std::move(lists), nb::len(sequences));
  return ToPython(StepRows(sequences, logits, tasks, allowed, dtype, stream));
}

nb::tuple DrawTokens(nb::list sequences, nb::handle logits, nb::handle allowed, const std::optional<std::string>& dtype,
                     uint64_t stream) {
  return ToTokens(StepRows(sequences, logits, Tasks(), allowed, dtype, stream));
}

template <typename Rewrite>
void Apply(const LocalHandle& self, Rewrite rewrite) {
  const absl::Status status = self.Change(rewrite);
  if (!status.ok()) Raise(status);
}

}  // namespace

void BindLocal(nb::module_& module) {
  using client::LocalSequence;
  nb::class_<LocalHandle>(module, "LocalSequence", "A sequence that is sampled on the calling thread. Thread-safe.")
      .def(nb::new_(&Open), nb::arg("message"), nb::arg("prompt"), nb::arg("start_position").none())
      .def("fork", &Fork, nb::arg("message"), nb::arg("position").none())
      .def_prop_ro("request_id", &LocalHandle::request_id)
      .def_prop_ro("vocabulary_size", &LocalHandle::vocabulary_size)
      .def_prop_ro("seed", [](const LocalHandle& self) { return self.With([](LocalSequence& s) { return s.seed(); }); })
      .def_prop_ro("stateful",
                   [](const LocalHandle& self) { return self.With([](LocalSequence& s) { return s.stateful(); }); })
      .def_prop_ro("position",
                   [](const LocalHandle& self) { return self.With([](LocalSequence& s) { return s.position(); }); })
      .def_prop_ro("tokens",
                   [](const LocalHandle& self) { return self.With([](LocalSequence& s) { return s.tokens(); }); })
      .def(
          "replace_last",
          [](const LocalHandle& self, uint32_t token) {
            Apply(self, [=](LocalSequence& s) { return s.ReplaceLast(token); });
          },
          nb::arg("token"))
      .def(
          "append",
          [](const LocalHandle& self, const std::vector<uint32_t>& tokens) {
            Apply(self, [&](LocalSequence& s) { return s.Append(tokens); });
          },
          nb::arg("tokens"))
      .def(
          "truncate",
          [](const LocalHandle& self, uint32_t position) {
            Apply(self, [=](LocalSequence& s) { return s.Truncate(position); });
          },
          nb::arg("position"));
  module.def("step_local", &Step, nb::arg("sequences"), nb::arg("logits"), nb::arg("tasks"), nb::arg("allowed").none(),
             nb::arg("dtype").none(), nb::arg("stream"));
  module.def("draw_tokens_local", &DrawTokens, nb::arg("sequences"), nb::arg("logits"), nb::arg("allowed").none(),
             nb::arg("dtype").none(), nb::arg("stream"));
}

}  // namespace sortition::python
