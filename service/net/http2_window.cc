// Windows of a fixed size.
#include "service/net/http2_window.h"

#include <grpcpp/version_info.h>

#define SORTITION_GRPC_FORGETS_WINDOW (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 74)

#if SORTITION_GRPC_FORGETS_WINDOW
// As gRPC declares it, alike in all these versions, in src/core/ext/transport/chttp2/transport/flow_control.h.
namespace grpc_core::chttp2 {

class TestOnlyTransportTargetWindowEstimatesMocker {
 public:
  virtual ~TestOnlyTransportTargetWindowEstimatesMocker() = default;
  virtual double ComputeNextTargetInitialWindowSizeFromPeriodicUpdate(double current_target) = 0;
};

extern TestOnlyTransportTargetWindowEstimatesMocker* g_test_only_transport_target_window_estimates_mocker
    __attribute__((weak));

}  // namespace grpc_core::chttp2
#endif

namespace sortition::server {
namespace {

#if SORTITION_GRPC_FORGETS_WINDOW
class FixedWindow final : public grpc_core::chttp2::TestOnlyTransportTargetWindowEstimatesMocker {
 public:
  explicit FixedWindow(uint32_t bytes) : bytes_(bytes) {}
  double ComputeNextTargetInitialWindowSizeFromPeriodicUpdate(double) override { return bytes_; }

 private:
  const uint32_t bytes_;
};

// Makes gRPC use `bytes` in place of its estimates. Returns true if it does.
bool ReplaceEstimates(uint32_t bytes) {
  if (&grpc_core::chttp2::g_test_only_transport_target_window_estimates_mocker == nullptr) return false;
  static FixedWindow* const window = new FixedWindow(bytes);  // gRPC's threads use it until the process ends
  grpc_core::chttp2::g_test_only_transport_target_window_estimates_mocker = window;
  return true;
}
#else
bool ReplaceEstimates(uint32_t) { return false; }
#endif

}  // namespace

void SetHttp2Window(uint32_t bytes, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, static_cast<int>(bytes));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, ReplaceEstimates(bytes) ? 1 : 0);
}

}  // namespace sortition::server
