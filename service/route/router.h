// Chooses the device of the next batch.
#pragma once

#include <cstdint>
#include <vector>

#include "devices/device.h"

namespace sortition::service {

// Not thread-safe; the batcher guards it.
class Router {
 public:
  // `devices` are not owned and outlive the router.
  explicit Router(std::vector<devices::Device*> devices);

  // The device with room that has the fewest rows in flight, the first of equals; null if none has room.
  devices::Device* Choose() const;

  void Started(const devices::Device* device, uint32_t rows);
  void Finished(const devices::Device* device, uint32_t rows);

 private:
  struct Load {
    devices::Device* device;
    uint32_t batches = 0;
    uint32_t rows = 0;
  };
  Load& Find(const devices::Device* device);
  std::vector<Load> loads_;
};

}  // namespace sortition::service
