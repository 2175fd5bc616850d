// Binds device memory and its registrations, and the protocols by which frameworks make tensors of it.
#include "client/python/native/device_memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/cuda/cuda_statements.h"
#include "client/python/native/module.h"
#include "client/python/native/results.h"
#include "sortition/batch.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

CudaRows* MakeRows(int device, uint64_t bytes) {
  auto made = MadeWithoutGil([&] { return client::CudaRows::Create(device, bytes); });
  return new CudaRows{device, std::shared_ptr<const client::CudaRows>(made.release(), DeleteAfterDevice())};
}

// Returns the memory as a tensor of bytes, which supports DLPack and keeps `self` alive. It names no stream, because no
// work is queued that a consumer would have to wait for.
nb::object BytesOf(nb::handle self) {
  using Bytes = nb::ndarray<nb::array_api, uint8_t, nb::device::cuda>;
  const auto& [device, rows] = nb::cast<const CudaRows&>(self);
  const size_t shape[] = {static_cast<size_t>(rows->bytes())};
  return nb::cast(Bytes(rows->data(), 1, shape, self, nullptr, nb::dtype<uint8_t>(), nb::device::cuda::value, device));
}

nb::dict CudaArrayInterface(const CudaRows& self) {
  nb::dict interface;
  interface["version"] = 3;
  interface["shape"] = nb::make_tuple(self.rows->bytes());
  interface["typestr"] = "|u1";
  interface["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(self.rows->data()), false);
  interface["strides"] = nb::none();
  return interface;
}

}  // namespace

void DeviceMemory::Close() {
  if (rows_ == nullptr) return;
  rows_->is_closed = true;
  rows_.reset();
}

absl::Status DeviceMemory::sharing() const {
  const std::shared_ptr<const SharedRows> rows = rows_;  // another thread may close it meanwhile
  if (rows == nullptr) return absl::FailedPreconditionError("the memory is closed");
  nb::gil_scoped_release released;  // the client may be reading rows
  return rows->memory->sharing();
}

bool DeviceMemory::IsStated(uint32_t vocabulary_size, uint32_t element_bytes) const {
  const std::shared_ptr<const SharedRows> rows = rows_;
  if (rows == nullptr) return false;
  nb::gil_scoped_release released;
  return rows->memory->IsStated(vocabulary_size, element_bytes);
}

DeviceMemory SharedRowsTable::Share(std::shared_ptr<client::Client> client, const CudaRows& rows) {
  const std::shared_ptr<const client::CudaRows> kept = rows.rows;
  auto made = MadeWithoutGil([&] {
    auto memory = client->ShareDevice(client::WithStatements(*kept));
    client.reset();
    return memory;
  });
  const std::shared_ptr<SharedRows> shared(new SharedRows{kept, std::move(made)}, DeleteWithoutGil());
  std::erase_if(shared_, [](const auto& known) { return known.expired(); });
  shared_.push_back(shared);
  return DeviceMemory(shared);
}

std::shared_ptr<const SharedRows> SharedRowsTable::FindRow(const void* row, size_t bytes) const {
  for (const std::weak_ptr<const SharedRows>& known : shared_) {
    std::shared_ptr<const SharedRows> shared = known.lock();
    if (shared == nullptr || shared->is_closed) continue;
    const uintptr_t offset = reinterpret_cast<uintptr_t>(row) - reinterpret_cast<uintptr_t>(shared->rows->data());
    if (offset <= shared->rows->bytes() && bytes <= shared->rows->bytes() - offset) return shared;
  }
  return nullptr;
}

std::vector<std::shared_ptr<const SharedRows>> SharedRowsTable::Find(const Rows& rows,
                                                                     const std::vector<size_t>& positions) const {
  std::vector<std::shared_ptr<const SharedRows>> found;
  if (!rows.cuda_device) return found;
  const size_t row_bytes = size_t{rows.width} * client::ElementBytes(rows.dtype);
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    std::shared_ptr<const SharedRows> shared =
        FindRow(rows.rows[i], row_bytes * (positions.empty() ? 1 : positions[i]));
    if (shared == nullptr) {
      throw nb::type_error(absl::StrCat("logits: row ", i, " is on another device (CUDA device ", *rows.cuda_device,
                                        ") and not in memory that this client has been given (share_device); it has ",
                                        "to be there, or to be copied to the CPU first")
                               .c_str());
    }
    if (std::ranges::find(found, shared) == found.end()) found.push_back(std::move(shared));
  }
  return found;
}

void BindDevice(nb::module_& module) {
  nb::class_<CudaRows>(module, "CudaRows",
                       "Memory of a CUDA device for logits, which a server on the same device can read where they lie\n"
                       "(Client.share_device). An engine has its last layer write there:\n"
                       "torch.from_dlpack(rows) is a tensor of bytes, to be viewed as any type, and so is whatever\n"
                       "else DLPack or __cuda_array_interface__ make of it. The memory lives as long as such tensors.")
      .def(nb::new_(&MakeRows), nb::arg("device"), nb::arg("bytes"),
           "At least `bytes` on the device of that number in CUDA's order, in its primary context.")
      .def_ro("device", &CudaRows::device)
      .def_prop_ro(
          "bytes", [](const CudaRows& self) { return self.rows->bytes(); },
          "As many as the driver's granularity makes of those asked for.")
      .def_prop_ro("__cuda_array_interface__", &CudaArrayInterface)
      .def(
          "__dlpack_device__", [](nb::handle self) { return BytesOf(self).attr("__dlpack_device__")(); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__dlpack__",
           [](nb::handle self, nb::kwargs options) { return BytesOf(self).attr("__dlpack__")(**options); });

  nb::class_<DeviceMemory>(module, "DeviceMemory",
                           "CudaRows that a client has been given; their tensors may be stepped until it is closed.")
      .def_prop_ro(
          "shared", [](const DeviceMemory& self) { return self.sharing().ok(); },
          "Whether rows there are only named to the server of the stream in use. If not they are read to the host.")
      .def_prop_ro(
          "note", [](const DeviceMemory& self) { return std::string(self.sharing().message()); },
          "Why they are not shared.")
      .def(
          "is_stated", &DeviceMemory::IsStated, nb::arg("vocabulary_size"), nb::arg("itemsize"),
          "Whether the device states such rows in compact form for the stream in use: then first tokens leave it, and\n"
          "rows only where the server asks for more. `itemsize` is the bytes of a logit.")
      .def("close", &DeviceMemory::Close, "Steps that are under way keep the memory until they are over.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> DeviceMemory"))
      .def("__exit__", [](DeviceMemory& self, nb::args) { self.Close(); });
}

}  // namespace sortition::python
