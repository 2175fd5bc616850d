// Parses traceparent: version "-" trace-id "-" parent-id "-" flags, each in a fixed number of lower-case hexadecimal
// digits.
#include "service/wire/trace.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/checks.h"
#include "service/limits.h"

namespace sortition::service {
namespace {

constexpr absl::string_view kPath = "step.trace.traceparent";
constexpr size_t kVersionAt = 0, kTraceIdAt = 3, kParentIdAt = 36, kFlagsAt = 53;
constexpr size_t kTraceIdBytes = 32;
constexpr size_t kBytes = 55;  // in version 00; later versions may only append "-..."

bool IsHex(absl::string_view digits) { return digits.find_first_not_of("0123456789abcdef") == absl::string_view::npos; }

bool IsId(absl::string_view digits) {
  return IsHex(digits) && digits.find_first_not_of('0') != absl::string_view::npos;
}

bool IsTraceparent(absl::string_view text) {
  if (text.size() < kBytes) return false;
  const absl::string_view version = text.substr(kVersionAt, 2);
  const bool ends = text.size() == kBytes || (version != "00" && text[kBytes] == '-');
  return ends && IsHex(version) && version != "ff" && text[kTraceIdAt - 1] == '-' && text[kParentIdAt - 1] == '-' &&
         text[kFlagsAt - 1] == '-' && IsId(text.substr(kTraceIdAt, kTraceIdBytes)) &&
         IsId(text.substr(kParentIdAt, 16)) && IsHex(text.substr(kFlagsAt, 2));
}

}  // namespace

std::optional<Refusal> CheckTrace(const v1::TraceContext& trace) {
  if (auto refusal = CheckName(trace.traceparent(), kPath)) return refusal;
  const Bound most = Bounds::max_trace_state_bytes();
  if (auto refusal = CheckByteCount(trace.tracestate().size(), most, "step.trace.tracestate")) return refusal;
  if (IsTraceparent(trace.traceparent())) return std::nullopt;
  return Refusal{Reason::kOutOfRange, std::string(kPath), "W3C trace context",
                 "is not version-traceid-parentid-flags in lower-case hexadecimal digits"};
}

bool IsSampled(const v1::TraceContext& trace) {
  const char last = trace.traceparent()[kFlagsAt + 1];
  const int digit = last <= '9' ? last - '0' : last - 'a' + 10;
  return (digit & 1) != 0;
}

std::string_view TraceIdOf(std::string_view traceparent) { return traceparent.substr(kTraceIdAt, kTraceIdBytes); }

}  // namespace sortition::service
