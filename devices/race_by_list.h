// Places in the race for devices whose kernels do not find them: from the list of the kept tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "devices/device.h"
#include "kernels/row.h"

namespace sortition::devices {

// The rows of a batch as the kernels take them: those that want a place in the race list their kept tokens in its
// stead. Costs nothing if no row wants one. Not thread-safe.
class RaceByList {
 public:
  // `rows` must stay alive and unchanged.
  explicit RaceByList(std::span<const DeviceRow> rows);
  RaceByList(const RaceByList&) = delete;
  RaceByList& operator=(const RaceByList&) = delete;

  std::span<const DeviceRow> rows() const { return rows_; }
  // Turns the outputs of these rows, one for each, into those that the original rows ask for.
  void Finish(std::span<kernels::RowOutput> outputs) const;

 private:
  const std::span<const DeviceRow> asked_;
  std::vector<kernels::RowParameters> parameters_;  // of the rows that want a place
  std::vector<DeviceRow> changed_;                  // all rows; empty if none wants a place
  std::span<const DeviceRow> rows_;
};

}  // namespace sortition::devices
