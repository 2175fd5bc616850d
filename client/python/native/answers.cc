// The memory, and the tensors that are made of it without a copy.
#include "client/python/native/answers.h"

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

#include "client/python/native/module.h"
#include "client/python/native/results.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

CudaAnswers* MakeAnswers(int device, uint32_t rows) {
  auto made = MadeWithoutGil([&] { return client::CudaAnswers::Create(device, rows); });
  return new CudaAnswers{device,
                         std::shared_ptr<AnswersMemory>(new AnswersMemory(std::move(made)), DeleteAfterDevice())};
}

// One element a row, as an object that speaks DLPack and keeps `self`.
template <typename Element>
nb::object TensorOf(nb::handle self, const Element* data) {
  using Elements = nb::ndarray<nb::array_api, Element, nb::device::cuda>;
  const CudaAnswers& answers = nb::cast<const CudaAnswers&>(self);
  const size_t shape[] = {answers.memory->get().rows()};
  return nb::cast(Elements(const_cast<Element*>(data), 1, shape, self, nullptr, nb::dtype<Element>(),
                           nb::device::cuda::value, answers.device));
}

}  // namespace

absl::Status AnswersMemory::StepAsync(client::Client* client, const client::Batch& batch,
                                      const client::StepOptions& options, uint64_t stream,
                                      client::Client::StepDone done) {
  if (is_under_way_.exchange(true)) {
    return absl::FailedPreconditionError("answers: the step before is not over; steps of other sequences take others");
  }
  const absl::Status status =
      answers_->StepAsync(client, batch, options, reinterpret_cast<CUstream_st*>(stream), std::move(done));
  if (!status.ok()) EndStep();
  return status;
}

void BindAnswers(nb::module_& module) {
  nb::class_<CudaAnswers>(module, "CudaAnswers",
                          "Tokens and log probabilities of a step in the memory of a CUDA device, for work that is\n"
                          "queued before they are known (Client.submit). Those of the next step take their place.\n"
                          "Before it goes the device does all work that it has.")
      .def(nb::new_(&MakeAnswers), nb::arg("device"), nb::arg("rows"),
           "For steps of up to `rows` rows, on the device of that number in CUDA's order.")
      .def_ro("device", &CudaAnswers::device)
      .def_prop_ro("rows", [](const CudaAnswers& self) { return self.memory->get().rows(); })
      .def_prop_ro(
          "tokens",
          [](nb::handle self) { return TensorOf(self, nb::cast<const CudaAnswers&>(self).memory->get().tokens()); },
          "By row, int32, by DLPack: the token drawn, or -1 where the row failed or was no draw.")
      .def_prop_ro(
          "logprobs",
          [](nb::handle self) { return TensorOf(self, nb::cast<const CudaAnswers&>(self).memory->get().logprobs()); },
          "By row, float32, by DLPack: raw where asked for, else processed, else 0.");
}

}  // namespace sortition::python
