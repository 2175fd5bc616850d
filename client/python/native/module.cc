// The native module of the package: sortition._native.
#include "client/python/native/module.h"

#include <nanobind/stl/string.h>
#include <pthread.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/python/native/cuda_results.h"
#include "client/python/native/device_memory.h"
#include "client/python/native/ready.h"
#include "client/python/native/results.h"
#include "client/python/native/stream.h"
#include "kernels/cpu/target.h"
#include "kernels/law/version.h"
#include "service/version.h"

thread_local bool sortition::python::InCallback::here_ = false;
uint64_t sortition::python::Home::forks_so_far_ = 0;

namespace nb = nanobind;

namespace sortition::python {

void CountForks() {
  pthread_atfork(nullptr, nullptr, [] { ++Home::forks_so_far_; });
}

client::SequenceOptions ParseSequence(nb::bytes message, std::vector<uint32_t> prompt,
                                      std::optional<uint32_t> start_position) {
  v1::OpenSequence open;
  if (!open.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    throw nb::value_error("the bytes are no sortition.v1.OpenSequence");
  }
  client::SequenceOptions options;
  options.request_id = open.request_id();
  options.parameters = std::move(*open.mutable_parameters());
  if (open.has_seed()) options.seed = open.seed();
  options.choice_index = open.choice_index();
  options.vocabulary_size = open.vocabulary_size();
  if (open.has_live_vocabulary_size()) options.live_vocabulary_size = open.live_vocabulary_size();
  options.model = open.model();
  options.watermark_key_id = open.watermark_key_id();
  options.prompt = std::move(prompt);
  options.start_position = start_position;
  return options;
}

absl::Duration ToDuration(const char* name, double seconds) {
  constexpr double kMost = 1e9;  // 30 years
  if (seconds >= 0 && seconds <= kMost) return absl::Seconds(seconds);
  throw nb::value_error(absl::StrCat(name, ": ", seconds, "; 0 to ", kMost, " seconds").c_str());
}

}  // namespace sortition::python

NB_MODULE(_native, module) {
  module.attr("VERSION") = std::string(sortition::service::Version());
  module.attr("LAW_VERSION") = sortition::law::kLawVersion;
  module.attr("CPU_KERNELS") = std::string(sortition::kernels::cpu::BestTarget().name);
  sortition::python::CountForks();
  sortition::python::BindResults(module);
  sortition::python::BindCudaResults(module);
  sortition::python::BindDevice(module);
  sortition::python::BindReady(module);
  sortition::python::BindClient(module);
  sortition::python::BindLocal(module);
  sortition::python::BindStream(module);
}
