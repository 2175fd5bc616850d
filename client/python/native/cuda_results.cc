// Binds CudaResults, and makes tensors of its memory without a copy.
#include "client/python/native/cuda_results.h"

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

#include "client/python/native/module.h"
#include "client/python/native/results.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

CudaResults* MakeCudaResults(int device, uint32_t rows) {
  auto made = MadeWithoutGil([&] { return client::CudaResults::Create(device, rows); });
  return new CudaResults{device,
                         std::shared_ptr<ResultsMemory>(new ResultsMemory(std::move(made)), DeleteAfterDevice())};
}

// Returns a tensor with one element a row, which supports DLPack and keeps `self` alive.
template <typename Element>
nb::object MakeTensor(nb::handle self, const Element* data) {
  using Elements = nb::ndarray<nb::array_api, Element, nb::device::cuda>;
  const CudaResults& results = nb::cast<const CudaResults&>(self);
  const size_t shape[] = {results.memory->get().rows()};
  return nb::cast(Elements(const_cast<Element*>(data), 1, shape, self, nullptr, nb::dtype<Element>(),
                           nb::device::cuda::value, results.device));
}

}  // namespace

absl::Status ResultsMemory::StepAsync(client::Client* client, const client::Batch& batch,
                                      const client::StepOptions& options, uint64_t stream,
                                      client::Client::StepDone done) {
  if (is_under_way_.exchange(true)) {
    return absl::FailedPreconditionError(
        "results: the step before has not ended; overlapping steps need several CudaResults");
  }
  const absl::Status status =
      results_->StepAsync(client, batch, options, reinterpret_cast<CUstream_st*>(stream), std::move(done));
  if (!status.ok()) EndStep();
  return status;
}

void BindCudaResults(nb::module_& module) {
  nb::class_<CudaResults>(module, "CudaResults",
                          "Tokens and log probabilities of a step in the memory of a CUDA device, for work that is\n"
                          "queued before they are known (Client.submit). Those of the next step take their place.\n"
                          "Before it goes the device does all work that it has.")
      .def(nb::new_(&MakeCudaResults), nb::arg("device"), nb::arg("rows"),
           "For steps of up to `rows` rows, on the device of that number in CUDA's order.")
      .def_ro("device", &CudaResults::device)
      .def_prop_ro("rows", [](const CudaResults& self) { return self.memory->get().rows(); })
      .def_prop_ro(
          "tokens",
          [](nb::handle self) { return MakeTensor(self, nb::cast<const CudaResults&>(self).memory->get().tokens()); },
          "By row, int32, by DLPack: the token drawn, or -1 where the row failed or was no draw.")
      .def_prop_ro(
          "logprobs",
          [](nb::handle self) { return MakeTensor(self, nb::cast<const CudaResults&>(self).memory->get().logprobs()); },
          "By row, float32, by DLPack: raw where asked for, else processed, else 0.");
}

}  // namespace sortition::python
