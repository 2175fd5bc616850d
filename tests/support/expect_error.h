// Expectations on typed errors of the wire.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Reason, its code, and the field to blame.
inline void ExpectError(const v1::Error& error, Reason reason, const std::string& field) {
  EXPECT_EQ(v1::ErrorReason_Name(error.reason()), ReasonName(reason)) << error.ShortDebugString();
  EXPECT_EQ(error.code(), static_cast<int>(ToStatusCode(reason)));
  EXPECT_EQ(error.field(), field);
  EXPECT_FALSE(error.message().empty());
}

inline void ExpectError(const v1::RowResult& result, Reason reason, const std::string& field) {
  ASSERT_TRUE(result.has_error()) << result.ShortDebugString();
  ExpectError(result.error(), reason, field);
}

// Returns the refusal that `outcome` has to hold; an empty one if it holds something else.
template <typename... Outcomes>
Refusal ExpectRefusal(const std::variant<Outcomes...>& outcome, Reason reason) {
  const Refusal* const refusal = std::get_if<Refusal>(&outcome);
  EXPECT_NE(refusal, nullptr);
  if (refusal == nullptr) return {};
  EXPECT_EQ(ReasonName(refusal->reason), ReasonName(reason)) << refusal->message;
  return *refusal;
}

}  // namespace sortition::service
