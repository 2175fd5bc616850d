// Shared by the tests of routes: the start of their time, and a cheap self-test.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "devices/self_test/self_test.h"
#include "kernels/law/golden/golden_rows.h"

namespace sortition::service {

inline const absl::Time kStart = absl::FromUnixSeconds(1'000'000'000);

// Uses the golden rows with few tokens. Thread-safe.
inline const devices::SelfTest& SmallSelfTest() {
  static const devices::SelfTest& self_test = *new devices::SelfTest([] {
    std::vector<law::GoldenRow> rows = law::GoldenRows();
    std::erase_if(rows, [](const law::GoldenRow& row) { return row.vocabulary > 6; });
    return rows;
  }());
  return self_test;
}

}  // namespace sortition::service
