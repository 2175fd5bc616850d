// Binding of the metrics endpoint.
#include "monitoring/exposition.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::monitoring {

absl::StatusOr<std::unique_ptr<Exposition>> Exposition::Start(const std::string& address, PrometheusObserver* observer,
                                                              service::Engine* engine,
                                                              std::function<uint32_t()> streams) {
  std::unique_ptr<Exposition> exposition(new Exposition);
  if (address.empty()) return exposition;
  exposition->registry_ = observer->registry();
  exposition->live_ = std::make_shared<LiveMetrics>(engine, std::move(streams));
  try {
    exposition->exposer_ = std::make_unique<prometheus::Exposer>(address);
  } catch (const std::exception& failure) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", failure.what()));
  }
  exposition->exposer_->RegisterCollectable(exposition->registry_);
  exposition->exposer_->RegisterCollectable(exposition->live_);
  const int port = exposition->exposer_->GetListeningPorts().front();
  exposition->address_ = absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
  return exposition;
}

}  // namespace sortition::monitoring
