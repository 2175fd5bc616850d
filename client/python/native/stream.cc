// Binds steps that are queued on a CUDA stream: their rows, their tokens on the device, their results.
#include "client/python/native/stream.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/python/native/module.h"
#include "client/python/native/results.h"
#include "client/python/native/tensor.h"
#include "kernels/check.h"

namespace nb = nanobind;

namespace sortition::python {

StreamRows::~StreamRows() {
  for (const auto& handle : handles_) {
    if (handle != nullptr) handle->Leave();
  }
}

absl::Status StreamRows::CheckOpen() const {
  return is_closed_ ? absl::FailedPreconditionError("the CudaStream is closed") : absl::OkStatus();
}

absl::Status StreamRows::CheckRow(uint32_t row) const {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (row < handles_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("row: ", row, ", not below ", handles_.size()));
}

void StreamRows::Leave(uint32_t row) {
  if (handles_[row] == nullptr) return;
  SORTITION_CHECK(stream_->Clear(row).ok());
  std::exchange(handles_[row], nullptr)->Leave();
}

absl::Status StreamRows::Put(uint32_t row, std::shared_ptr<const LocalHandle> handle) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  Leave(row);
  if (absl::Status status = handle->PutOn(stream_.get(), row); !status.ok()) return status;
  handles_[row] = std::move(handle);
  return absl::OkStatus();
}

absl::Status StreamRows::Clear(uint32_t row) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  Leave(row);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<StreamRows::Step>> StreamRows::Queue(const client::StreamStep& step,
                                                                    CUstream_st* stream) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  const auto queued = stream_->Step(step, stream);
  if (!queued.ok()) return queued.status();
  auto made = std::make_shared<Step>();
  made->queued = *queued;
  made->count = static_cast<uint32_t>(step.rows.size());
  for (const uint32_t row : step.rows) {
    if (row != client::CudaStream::kNoRow) made->handles.push_back(handles_[row]);
  }
  under_way_.push_back(made);
  return made;
}

absl::StatusOr<bool> StreamRows::IsDone(const Step& step) const {
  {
    absl::MutexLock lock(&mutex_);
    if (step.is_collected) return true;
  }
  return stream_->IsDone(step.queued.ticket);
}

void StreamRows::TakeFirst() {
  const std::shared_ptr<Step> step = std::move(under_way_.front());
  under_way_.pop_front();
  std::vector<const LocalHandle*> handles;
  for (const auto& handle : step->handles) handles.push_back(handle.get());
  const LocalHandle::Lock lock(std::move(handles));
  auto results = stream_->Await(step->queued.ticket);
  step->status = results.status();
  if (results.ok()) step->results = *std::move(results);
  step->is_collected = true;
}

void StreamRows::Collect(const Step& step) {
  // Await returns the same error.
  stream_->Wait(step.queued.ticket).IgnoreError();
  absl::MutexLock lock(&mutex_);
  while (!step.is_collected) {
    SORTITION_CHECK(!under_way_.empty());
    TakeFirst();
  }
}

void StreamRows::Close() {
  std::shared_ptr<const Step> last;
  {
    absl::MutexLock lock(&mutex_);
    is_closed_ = true;
    if (!under_way_.empty()) last = under_way_.back();
  }
  if (last != nullptr) Collect(*last);
  absl::MutexLock lock(&mutex_);
  for (uint32_t row = 0; row < handles_.size(); ++row) Leave(row);
}

namespace {

// sortition.local.CudaStream.
struct CudaStream {
  int device;
  CudaLimits limits;
  std::shared_ptr<StreamRows> rows;
};

// sortition.local.CudaStep. Keeps the memory of its tensors.
struct CudaStep {
  int device;
  std::shared_ptr<StreamRows> rows;
  std::shared_ptr<StreamRows::Step> step;
  nb::object results;  // set once they were requested
};

CudaStream* MakeStream(int device, uint32_t rows, uint32_t vocabulary_size, uint32_t edits, uint32_t top) {
  const CudaLimits limits = {.rows = rows, .vocabulary = vocabulary_size, .edits = edits, .top = top};
  auto made = MadeWithoutGil([&] { return client::CudaStream::Create(device, limits); });
  return new CudaStream{device, limits,
                        std::shared_ptr<StreamRows>(new StreamRows(std::move(made), rows), DeleteAfterDevice())};
}

template <typename Call>
void Do(Call call) {
  const absl::Status status = [&] {
    nb::gil_scoped_release released;
    return call();
  }();
  if (!status.ok()) Raise(status);
}

void Put(const CudaStream& self, uint32_t row, std::shared_ptr<LocalHandle> sequence) {
  if (sequence->vocabulary_size() > self.limits.vocabulary) {
    throw nb::value_error(absl::StrCat("sequence: its vocabulary_size is ", sequence->vocabulary_size(),
                                       ", above the stream's, ", self.limits.vocabulary)
                              .c_str());
  }
  Do([&] { return self.rows->Put(row, std::move(sequence)); });
}

void Clear(const CudaStream& self, uint32_t row) {
  Do([&] { return self.rows->Clear(row); });
}

void Close(const CudaStream& self) {
  nb::gil_scoped_release released;
  self.rows->Close();
}

// Returns the distance from each row to the next, in bytes. Raises ValueError.
uint64_t DistanceOf(const Rows& rows) {
  const uint64_t row_bytes = uint64_t{rows.width} * client::ElementBytes(rows.dtype);
  if (rows.rows.size() == 1) return (row_bytes + 15) / 16 * 16;
  const auto at = [&](size_t i) { return reinterpret_cast<uintptr_t>(rows.rows[i]); };
  for (size_t i = 1; i < rows.rows.size(); ++i) {
    if (at(i) > at(i - 1) && at(i) - at(i - 1) == at(1) - at(0)) continue;
    throw nb::value_error("logits: the rows of a step on a stream lie at equal distances");
  }
  return at(1) - at(0);
}

// Reads numbers of rows, and None. Raises TypeError.
std::vector<uint32_t> ReadPlaces(nb::handle rows) {
  std::vector<uint32_t> places;
  for (nb::handle row : nb::list(rows)) {
    uint32_t place = client::CudaStream::kNoRow;
    if (!row.is_none() && (!nb::try_cast(row, place) || place == client::CudaStream::kNoRow)) {
      PyErr_Clear();
      throw nb::type_error("rows: each is the number of a row, or None");
    }
    places.push_back(place);
  }
  if (places.empty()) throw nb::value_error("rows: a step has one at least");
  return places;
}

CudaStep* Step(const CudaStream& self, nb::handle rows, nb::handle logits, const std::optional<std::string>& dtype,
               nb::handle stream) {
  const std::vector<uint32_t> places = ReadPlaces(rows);
  const Rows read = ReadRows(logits, places.size(), {}, dtype, Cuda::kTaken);
  if (read.cuda_device != self.device) {
    throw nb::type_error(absl::StrCat("logits: the tensor is ",
                                      read.cuda_device ? absl::StrCat("on CUDA device ", *read.cuda_device)
                                                       : std::string("in the host's memory"),
                                      "; this stream's is CUDA device ", self.device)
                             .c_str());
  }
  if (read.width > self.limits.vocabulary) {
    throw nb::value_error(
        absl::StrCat("logits: rows of ", read.width, " elements; vocabulary_size is ", self.limits.vocabulary).c_str());
  }
  const client::StreamStep step = {read.rows.front(), DistanceOf(read), read.dtype, places};
  const auto number = nb::cast<uintptr_t>(nb::module_::import_("sortition.step").attr("stream_of")(logits, stream));
  auto queued = MadeWithoutGil([&] { return self.rows->Queue(step, reinterpret_cast<CUstream_st*>(number)); });
  return new CudaStep{self.device, self.rows, std::move(queued), {}};
}

nb::object Results(CudaStep& self) {
  if (self.results.is_valid()) return self.results;
  {
    nb::gil_scoped_release released;
    self.rows->Collect(*self.step);
  }
  if (!self.step->status.ok()) Raise(self.step->status);
  nb::list results;
  for (const auto& result : self.step->results) results.append(result ? ToPython(*result) : nb::none());
  self.results = results;
  return self.results;
}

bool IsDone(const CudaStep& self) {
  return MadeWithoutGil([&] { return self.rows->IsDone(*self.step); });
}

// Returns a tensor with one element for each row of logits, which supports DLPack and keeps `self` alive.
template <typename Element>
nb::object MakeTensor(nb::handle self, const Element* data) {
  using Elements = nb::ndarray<nb::array_api, Element, nb::device::cuda>;
  const CudaStep& step = nb::cast<const CudaStep&>(self);
  const size_t shape[] = {step.step->count};
  return nb::cast(Elements(const_cast<Element*>(data), 1, shape, self, nullptr, nb::dtype<Element>(),
                           nb::device::cuda::value, step.device));
}

}  // namespace

void BindStream(nb::module_& module) {
  nb::class_<CudaStep>(module, "CudaStep",
                       "A step that CudaStream.step has queued. Thread-safe.\n\n"
                       "`tokens` and `logprobs` are tensors on the device. Work that is queued behind the step in its\n"
                       "stream reads them written. CudaStream.STEPS steps later their memory is written again, so\n"
                       "that by then every other reader is done. The memory lives as long as tensors of it.")
      .def_prop_ro(
          "tokens",
          [](nb::handle self) { return MakeTensor(self, nb::cast<const CudaStep&>(self).step->queued.tokens); },
          "int32, one for each row of logits, by DLPack: the token drawn, -1 where the row failed. Unspecified where\n"
          "rows had None. Nothing waits.")
      .def_prop_ro(
          "logprobs",
          [](nb::handle self) { return MakeTensor(self, nb::cast<const CudaStep&>(self).step->queued.logprobs); },
          "float32, likewise: of the drawn token, natural logarithm; raw where asked for, else processed, else 0.")
      .def("done", &IsDone, "Returns whether the device has done the step. Does not block.")
      .def("results", &Results, nb::sig("def results(self) -> list[Draw | Error | None]"),
           "Returns a Draw or an Error for each row of logits, and advances the sequences. None where rows had None,\n"
           "and where the row was cleared or got another sequence since. Blocks until this step is done, not for\n"
           "later ones, without the GIL. Steps are collected in order: those before it are, too, and keep their\n"
           "results. Raises an Error if the device is lost.");

  nb::class_<CudaStream>(
      module, "CudaStream",
      "Sequences of a local Sampler whose steps are queued on a CUDA stream and not awaited.\n\n"
      "The device counts each drawn token in the penalties and takes the next position by itself, so that a step may\n"
      "be queued before the host has seen the token of the one before. Tokens and bits are those of Sampler.step.\n\n"
      "    stream = CudaStream(0, rows=64, vocabulary_size=32000, edits=4096)\n"
      "    stream.put(3, sequence)\n"
      "    step = stream.step([3], logits)     # logits: [1, 32000] on the device\n"
      "    forward(step.tokens)                # queued behind it\n"
      "    step.results()                      # any number of steps later, at most STEPS\n\n"
      "Thread-safe: one thread may queue steps while another waits for results.")
      .def(
          nb::new_(&MakeStream), nb::arg("device"), nb::kw_only(), nb::arg("rows"), nb::arg("vocabulary_size"),
          nb::arg("edits") = 0, nb::arg("top") = 0,
          "`device` is the number in CUDA's order; its primary context is used. `rows` (1..65535) is the most\n"
          "sequences at a time. `edits` is the most tokens of a row with a bias, a ban or a penalty; with penalties\n"
          "these are the tokens of the prompt (repetition_penalty) and those that are drawn. 16 bytes of the device's\n"
          "memory each, in every row. `top` is the most alternatives of log probabilities. Blocks while the driver\n"
          "loads the kernels. Raises an Error: no driver, no such device, a build without CUDA kernels, no memory.")
      .def_ro("device", &CudaStream::device)
      .def_prop_ro("rows", [](const CudaStream& self) { return self.limits.rows; })
      .def_prop_ro("vocabulary_size", [](const CudaStream& self) { return self.limits.vocabulary; })
      .def_prop_ro("edits", [](const CudaStream& self) { return self.limits.edits; })
      .def_prop_ro("top", [](const CudaStream& self) { return self.limits.top; })
      .def_prop_ro_static(
          "STEPS", [](nb::handle) { return client::CudaStream::kMostTickets; },
          "The most steps that were queued and not collected.")
      .def("put", &Put, nb::arg("row"), nb::arg("sequence"),
           "Puts a sequence of a local Sampler into a row, in the place of what was there. Until the row is cleared\n"
           "its steps are the stream's: stepping or changing it otherwise is an Error (FAILED_PRECONDITION). Results\n"
           "of the row's earlier steps that were not collected are void. Does not wait for the device.\n\n"
           "Raises an Error and leaves the row empty: UNIMPLEMENTED, with the option's field, where the host has to\n"
           "see each token (dry, no_repeat_ngram_size, min_tokens, bad_words of several tokens, phases, watermark,\n"
           "banned_phrases, penalty_scope) or where results need the host's memory (allowed_token_ids,\n"
           "logprob_token_ids, tempered_logprobs, kept_set.tokens, kept_log_mass); INVALID_ARGUMENT beyond `edits`,\n"
           "`top`, `rows`, or for another vocabulary than that of the other rows.")
      .def("clear", &Clear, nb::arg("row"),
           "Empties a row, whose sequence may be stepped otherwise again: from its last collected token on.")
      .def("step", &Step, nb::arg("rows"), nb::arg("logits"), nb::kw_only(), nb::arg("dtype").none() = nb::none(),
           nb::arg("stream").none() = nb::none(),
           "Queues a draw for each of `rows` and returns a CudaStep; nothing waits. `logits` has a row for each, in\n"
           "this order: a matrix [len(rows), vocabulary], or vectors, of float32, float16 or bfloat16 on the device,\n"
           "which begin at multiples of 16 bytes and lie at equal distances. They are read in place when the stream\n"
           "comes to it. None in `rows`: that row of logits is not drawn from. The stream's other rows stand still.\n"
           "`stream` is a CUDA stream of the device's primary context, by default torch's current one for its\n"
           "tensors and the default stream for others. All steps have one stream.\n\n"
           "Raises TypeError and ValueError for logits that cannot be read, and an Error: INVALID_ARGUMENT (a row\n"
           "named twice or without a sequence, alignment), FAILED_PRECONDITION (the stream captures a\n"
           "graph, this object is closed), RESOURCE_EXHAUSTED (STEPS steps were not collected). After these nothing\n"
           "is queued.")
      .def("close", &Close,
           "Collects what was queued, and empties all rows. Blocks for that. Steps keep their results and tensors;\n"
           "step, put and clear are an Error (FAILED_PRECONDITION) from now on.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> CudaStream"))
      .def("__exit__", [](const CudaStream& self, nb::args) { Close(self); });
}

}  // namespace sortition::python
