// The native half of the package: sortition._native.
#include "client/python/native/module.h"

#include <nanobind/stl/string.h>

#include <string>

#include "client/python/native/cuda_results.h"
#include "client/python/native/device.h"
#include "client/python/native/ready.h"
#include "client/python/native/results.h"
#include "kernels/law/version.h"
#include "service/version.h"

thread_local bool sortition::python::InCallback::here_ = false;

NB_MODULE(_native, module) {
  module.attr("VERSION") = std::string(sortition::service::Version());
  module.attr("LAW_VERSION") = sortition::law::kLawVersion;
  sortition::python::BindResults(module);
  sortition::python::BindCudaResults(module);
  sortition::python::BindDevice(module);
  sortition::python::BindReady(module);
  sortition::python::BindClient(module);
  sortition::python::BindLocal(module);
}
