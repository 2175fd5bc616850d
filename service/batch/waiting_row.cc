// Sizes of rows.
#include "service/batch/waiting_row.h"

namespace sortition::service {

uint64_t BytesOf(const devices::DeviceRow& row) {
  return uint64_t{row.request.live_vocabulary} * kernels::ElementBytes(row.request.dtype);
}

Router::Needs NeedsOf(const devices::DeviceRow& row) {
  return {row.request.live_vocabulary, kernels::FeaturesOf(row.request)};
}

}  // namespace sortition::service
