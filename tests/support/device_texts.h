// Texts over a CPU and another device, each with a part of each text, compared with the same texts on a CPU alone.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "devices/device.h"
#include "service/route/device_keeper.h"

namespace sortition::testing {

// Makes the devices alike to the router while a fake clock stands still: a batch goes to the one that has the fewest
// batches, and of several to the first.
void MakeAlike(std::initializer_list<devices::Device*> devices, service::DeviceKeeper* keeper);

// Writes `texts` random texts with drafts in every mode, phases, ends of texts, min_k, min_keep and cuts. Every answer
// has to be the same byte for byte. Fails the test if one is not, or if the CPU or `device` gets too few
// batches to say so. `device` should take few rows at once: then long drafts are split between the two.
void CompareTexts(std::unique_ptr<devices::Device> device, uint64_t texts);

}  // namespace sortition::testing
