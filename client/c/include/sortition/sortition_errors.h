// Errors of the C interface (sortition.h, which includes this header): codes, reasons, and the struct that has them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SORTITION_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// A google.rpc.Code.
typedef int32_t sortition_code;
enum {
  SORTITION_OK = 0,
  SORTITION_CANCELLED = 1,
  SORTITION_UNKNOWN = 2,
  SORTITION_INVALID_ARGUMENT = 3,
  SORTITION_DEADLINE_EXCEEDED = 4,
  SORTITION_NOT_FOUND = 5,
  SORTITION_ALREADY_EXISTS = 6,
  SORTITION_PERMISSION_DENIED = 7,
  SORTITION_RESOURCE_EXHAUSTED = 8,
  SORTITION_FAILED_PRECONDITION = 9,
  SORTITION_ABORTED = 10,
  SORTITION_OUT_OF_RANGE = 11,
  SORTITION_UNIMPLEMENTED = 12,
  SORTITION_INTERNAL = 13,
  SORTITION_UNAVAILABLE = 14,
  SORTITION_DATA_LOSS = 15,
  SORTITION_UNAUTHENTICATED = 16
};

// A reason of the contract. proto/sortition/v1/errors.proto has their meaning; later versions add reasons.
enum { SORTITION_REASON_NONE = 0, SORTITION_REASON_MALFORMED_MESSAGE = 1, SORTITION_REASON_UNKNOWN_FIELD = 2 };
enum { SORTITION_REASON_UNKNOWN_ENUM_VALUE = 3, SORTITION_REASON_MISSING_FIELD = 4, SORTITION_REASON_OUT_OF_RANGE = 5 };
enum { SORTITION_REASON_TOO_MANY = 6, SORTITION_REASON_NOT_IMPLEMENTED = 7, SORTITION_REASON_CONTRADICTION = 8 };
enum { SORTITION_REASON_SIZE_MISMATCH = 9, SORTITION_REASON_VOCABULARY_MISMATCH = 10 };
enum { SORTITION_REASON_DUPLICATE_ROW = 11, SORTITION_REASON_UNSUPPORTED_LAW_VERSION = 12 };
enum { SORTITION_REASON_PROTOCOL_VIOLATION = 13, SORTITION_REASON_UNKNOWN_REGION = 14 };
enum { SORTITION_REASON_UNKNOWN_MASK = 15, SORTITION_REASON_CHECKPOINT_REFUSED = 16 };
enum { SORTITION_REASON_UNAUTHENTICATED = 17, SORTITION_REASON_PERMISSION_DENIED = 18 };
enum { SORTITION_REASON_LOGIT_NAN = 20, SORTITION_REASON_LOGIT_TOO_LARGE = 21, SORTITION_REASON_NO_LIVE_TOKEN = 22 };
enum { SORTITION_REASON_HISTORY_REQUIRED = 30, SORTITION_REASON_STALE_STEP = 31, SORTITION_REASON_SUPERSEDED = 32 };
enum { SORTITION_REASON_STEP_IN_FLIGHT = 33, SORTITION_REASON_UNKNOWN_SEQUENCE = 34 };
enum { SORTITION_REASON_STEP_CONFLICT = 35, SORTITION_REASON_ROW_REQUIRED = 36 };
enum { SORTITION_REASON_OVERLOADED = 40, SORTITION_REASON_DEADLINE_PASSED = 41 };
enum { SORTITION_REASON_STEP_CANCELLED = 42, SORTITION_REASON_DRAINING = 43, SORTITION_REASON_DEVICE_FAILED = 44 };
enum { SORTITION_REASON_CLIENT_LIMIT = 45, SORTITION_REASON_RECEIPTS_NOT_WRITTEN = 46 };

// An error of a call or of a row. A struct of the library; its strings live as long as it does.
typedef struct sortition_error {
  size_t struct_size;
  sortition_code code;      // never SORTITION_OK
  int32_t reason;           // SORTITION_REASON_*
  const char* reason_name;  // "OUT_OF_RANGE"; empty without a reason
  const char* field;        // path of the offending field; empty if there is none
  const char* limit;        // the values that are accepted; empty if there is nothing to say
  const char* message;      // for people
  uint64_t retry_after_ns;  // advised pause before the next try; 0: no advice
} sortition_error;

// Frees an error that a call has returned; null is allowed. Not for errors of rows, which sortition_results_free frees.
SORTITION_API void sortition_error_free(sortition_error* error);

#ifdef __cplusplus
}
#endif
