// Comparison with the reference.
#include "service/route/recheck.h"

#include <cmath>
#include <vector>

#include "kernels/check.h"
#include "kernels/law/reference.h"

namespace sortition::service {

uint64_t WrongRowsUntilCaught(double share, double probability) {
  SORTITION_CHECK(share > 0 && share < 1 && probability > 0 && probability < 1);
  return static_cast<uint64_t>(std::ceil(std::log1p(-probability) / std::log1p(-share)));
}

bool IsRight(const devices::DeviceRow& row, const kernels::RowOutput& output) {
  std::vector<std::byte> tensor;
  for (const devices::ByteSegment& segment : row.segments) {
    tensor.insert(tensor.end(), segment.data, segment.data + segment.size);
  }
  kernels::RowRequest request = row.request;
  SORTITION_CHECK(tensor.size() >= size_t{request.live_vocabulary} * kernels::ElementBytes(request.dtype));
  request.logits = tensor.data();
  return law::SampleRowReference(request) == output;
}

}  // namespace sortition::service
