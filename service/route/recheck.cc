// Comparison with the reference.
#include "service/route/recheck.h"

#include <vector>

#include "kernels/check.h"
#include "kernels/law/reference.h"

namespace sortition::service {

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
