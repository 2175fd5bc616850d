// Binds the two kinds of ready words: raised by Python, and by a CUDA stream.
#include "client/python/native/ready.h"

#include <nanobind/stl/shared_ptr.h>

#include <atomic>

#include "absl/status/statusor.h"
#include "client/python/native/module.h"
#include "client/python/native/results.h"

namespace nb = nanobind;

namespace sortition::python {

Ready::Ready(client::Client::RowMemory memory)
    : memory_(std::move(memory)),
      // The memory may hold the value of an earlier use.
      expected_(*reinterpret_cast<const uint32_t*>(memory_.data.get())) {}

client::ReadyWord Ready::Word(uint32_t value) const {
  return {reinterpret_cast<const uint32_t*>(memory_.data.get()), value};
}

void Ready::Set(uint32_t value) {
  if (IsSet(value)) return;
  if (!IsSet(value - 1)) throw nb::value_error("ready: words are set in the order in which they were expected");
  std::atomic_ref(*reinterpret_cast<uint32_t*>(memory_.data.get())).store(value, std::memory_order_release);
}

absl::StatusOr<client::ReadyWord> CudaReady::Raise(uint64_t stream) {
  absl::MutexLock lock(&mutex_);
  if (stream_.value_or(stream) != stream) {
    return absl::InvalidArgumentError("ready: another stream has raised this word; each takes one of its own");
  }
  auto word = ready_->Raise(reinterpret_cast<CUstream_st*>(stream));
  if (word.ok()) stream_ = stream;
  return word;
}

std::shared_ptr<Ready> MakeReady(client::Client::RowMemory memory) {
  return {new Ready(std::move(memory)), DeleteWithoutGil()};
}

std::shared_ptr<CudaReady> MakeCudaReady(int device, client::Client::RowMemory memory) {
  const bool shared = memory.shared;
  auto made = MadeWithoutGil([&] { return client::CudaReady::Create(device, std::move(memory.data)); });
  return {new CudaReady(device, shared, std::move(made)), DeleteAfterDevice()};
}

Readiness Readiness::Read(nb::handle ready) {
  Readiness read;
  if (ready.is_none()) return read;
  if (nb::isinstance<ReadyWord>(ready)) {
    read.word_ = nb::cast<const ReadyWord&>(ready);
  } else if (nb::isinstance<CudaReady>(ready)) {
    read.cuda_ = nb::cast<std::shared_ptr<CudaReady>>(ready);
  } else {
    throw nb::type_error("ready: Ready.expect() or a CudaReady");
  }
  return read;
}

absl::Status Readiness::Apply(uint64_t stream, client::Batch* batch) const {
  if (word_) batch->ready = word_->ready->Word(word_->value);
  if (cuda_ == nullptr) return absl::OkStatus();
  const auto word = cuda_->Raise(stream);
  if (word.ok()) batch->ready = *word;
  return word.status();
}

void BindReady(nb::module_& module) {
  nb::class_<ReadyWord>(module, "ReadyWord",
                        "That certain logits are there: the `ready` of the step that is sent before they are.")
      .def(
          "set", [](const ReadyWord& self) { self.ready->Set(self.value); },
          "They are: all that was written before is seen. Words of one Ready are set in the order in which they were\n"
          "expected, each of them; anything else is a ValueError.")
      .def_prop_ro("is_set", [](const ReadyWord& self) { return self.ready->IsSet(self.value); });

  nb::class_<Ready>(module, "Ready",
                    "Says when logits are there that are written by Python, or by what Python waits for; made by\n"
                    "Client.ready. For one writer: writers whose works are in no order take one each.")
      .def(
          "expect",
          [](const std::shared_ptr<Ready>& self) {
            return ReadyWord{self, self->Expect()};
          },
          "For the logits that are written next.")
      .def_prop_ro("shared", &Ready::shared,
                   "Whether the server can look at it, of the stream that was in use when it was made. Otherwise the\n"
                   "client does, and sends the step then.");

  nb::class_<CudaReady>(
      module, "CudaReady",
      "Says when logits are there that are written by a stream of a CUDA device, which raises it by\n"
      "itself; made by Client.cuda_ready. As the `ready` of a step it is raised by the work that the\n"
      "step's stream has by then. Belongs to the stream that raises it first. Before it goes the\n"
      "device does all work that it has.")
      .def_prop_ro("device", &CudaReady::device)
      .def_prop_ro("shared", &CudaReady::shared, "As of a Ready.");
}

}  // namespace sortition::python
