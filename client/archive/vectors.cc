// Asks a device for the golden rows that it can take, one at a time.
#include "client/archive/vectors.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "devices/run_batch.h"
#include "kernels/features.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/reference.h"

namespace sortition::archive {

absl::StatusOr<std::string> AnswerVectors(devices::Device* device) {
  const std::vector<law::GoldenRow> rows = law::GoldenRows();
  size_t answered = 0;
  std::vector<std::string> different;
  for (const law::GoldenRow& row : rows) {
    const std::vector<std::byte> tensor = law::MakeTensor(row);
    const kernels::RowRequest request = law::MakeRequest(row, tensor);
    if (device == nullptr || request.live_vocabulary > device->description().max_vocabulary ||
        (kernels::FeaturesOf(request) & ~device->description().features) != 0) {
      continue;
    }
    devices::DeviceRow asked;
    asked.request = request;
    asked.segments.push_back({tensor.data(), tensor.size()});
    std::vector<devices::DeviceRow> batch;
    batch.push_back(std::move(asked));
    const devices::BatchOutput output = devices::RunBatch(device, std::move(batch));
    if (!output.status.ok()) return output.status;
    ++answered;
    if (output.outputs.front() != law::SampleRowReference(request))
      different.push_back(absl::StrCat("\"", row.name, "\""));
  }
  return absl::StrCat("{\"golden_outputs.json\": {\"rows\": ", rows.size(), ", \"answered\": ", answered,
                      ", \"different\": [", absl::StrJoin(different, ", "), "]}}\n");
}

}  // namespace sortition::archive
