// Least-loaded choice among the devices with room.
#include "service/route/router.h"

#include "kernels/check.h"

namespace sortition::service {

Router::Router(std::vector<devices::Device*> devices) {
  SORTITION_CHECK(!devices.empty());
  for (devices::Device* device : devices) loads_.push_back(Load{device});
}

devices::Device* Router::Choose() const {
  const Load* best = nullptr;
  for (const Load& load : loads_) {
    if (load.batches >= load.device->description().batches_in_flight) continue;
    if (best == nullptr || load.rows < best->rows) best = &load;
  }
  return best == nullptr ? nullptr : best->device;
}

void Router::Started(const devices::Device* device, uint32_t rows) {
  Load& load = Find(device);
  ++load.batches;
  load.rows += rows;
}

void Router::Finished(const devices::Device* device, uint32_t rows) {
  Load& load = Find(device);
  SORTITION_CHECK(load.batches > 0 && load.rows >= rows);
  --load.batches;
  load.rows -= rows;
}

Router::Load& Router::Find(const devices::Device* device) {
  for (Load& load : loads_) {
    if (load.device == device) return load;
  }
  SORTITION_CHECK(!"a device of this router");
  return loads_.front();
}

}  // namespace sortition::service
