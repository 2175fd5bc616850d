// The pages of the metrics port.
#include "monitoring/exposition.h"

#include <prometheus/text_serializer.h>

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "monitoring/live_metrics.h"
#include "monitoring/status_page.h"

namespace sortition::monitoring {
namespace {

std::string Metrics(const prometheus::Registry& registry, const LiveMetrics& live) {
  std::vector<prometheus::MetricFamily> families = registry.Collect();
  std::vector<prometheus::MetricFamily> now = live.Collect();
  families.insert(families.end(), std::make_move_iterator(now.begin()), std::make_move_iterator(now.end()));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Exposition>> Exposition::Start(const std::string& address, const Sources& sources) {
  std::unique_ptr<Exposition> exposition(new Exposition);
  if (address.empty()) return exposition;
  const auto live = std::make_shared<const LiveMetrics>(sources.engine, sources.draining, sources.certificate);
  std::map<std::string, HttpPage, std::less<>> pages;
  pages["/metrics"] = {"text/plain; version=0.0.4; charset=utf-8", [registry = sources.observer->registry(), live] {
                         return HttpAnswer{Metrics(*registry, *live)};
                       }};
  pages["/"] = {"text/html; charset=utf-8", [] { return HttpAnswer{std::string(StatusPage())}; }};
  pages["/health"] = {"text/plain", [draining = sources.draining] {
                        return draining() ? HttpAnswer{"draining\n", false} : HttpAnswer{"serving\n"};
                      }};
  if (sources.slow_steps != nullptr) {
    pages["/slow"] = {"application/json", [slow = sources.slow_steps] { return HttpAnswer{slow->Json()}; }};
  }
  auto server = HttpServer::Start(address, std::move(pages));
  if (!server.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", server.status().message()));
  }
  exposition->server_ = std::move(*server);
  exposition->address_ = exposition->server_->address();
  return exposition;
}

}  // namespace sortition::monitoring
