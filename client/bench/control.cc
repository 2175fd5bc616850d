// The histograms of the control.
#include "client/bench/control.h"

#include <cstdio>
#include <string>
#include <utility>

namespace sortition::bench {
namespace {

// Finds each hiccup of more than 6 ms.
constexpr absl::Duration kPeriod = absl::Milliseconds(5);

uint64_t Nanoseconds(absl::Duration time) { return static_cast<uint64_t>(absl::ToInt64Nanoseconds(time)); }

}  // namespace

std::unique_ptr<Control> Control::Start() {
  std::unique_ptr<Control> control(new Control);
  auto started =
      service::HiccupControl::Start(kPeriod, [control = control.get()](absl::Duration machine, absl::Duration threads) {
        const absl::MutexLock lock(&control->mutex_);
        control->lateness_.machine.Add(Nanoseconds(machine));
        control->lateness_.threads.Add(Nanoseconds(threads));
      });
  if (!started.ok()) {
    std::fprintf(stderr, "no control of the machine: %s\n", std::string(started.status().message()).c_str());
    return nullptr;
  }
  control->control_ = *std::move(started);
  return control;
}

Control::Lateness Control::Read() const {
  const absl::MutexLock lock(&mutex_);
  return lateness_;
}

void ReportControl(const Control::Lateness& lateness, Report* report) {
  for (const auto& [name, late] :
       {std::pair("control_machine", &lateness.machine), std::pair("control_threads", &lateness.threads)}) {
    AddPercentiles(name, "", *late, nullptr, report);
  }
}

}  // namespace sortition::bench
