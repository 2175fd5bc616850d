// Converts errors, and checks sizes and texts.
#include "client/c/boundary.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "google/protobuf/descriptor.h"
#include "kernels/law/version.h"
#include "service/version.h"

namespace sortition::c {
namespace {

// An error with the strings that it refers to.
struct OwnedError : sortition_error {
  client::RowError value;
};

// Returns the reason's name, which is never freed; empty for a reason that this library does not know.
const char* ReasonName(v1::ErrorReason reason) {
  static const auto& names = *[] {
    auto* const made = new absl::flat_hash_map<int, std::string>;
    const google::protobuf::EnumDescriptor& reasons = *v1::ErrorReason_descriptor();
    for (int i = 0; i < reasons.value_count(); ++i) {
      if (reasons.value(i)->number() != v1::ERROR_REASON_UNSPECIFIED) {
        made->emplace(reasons.value(i)->number(), std::string(reasons.value(i)->name()));
      }
    }
    return made;
  }();
  const auto found = names.find(reason);
  return found != names.end() ? found->second.c_str() : "";
}

// Returns the number of bytes of the UTF-8 character at `text`, which ends with a 0 byte; 0 if it is none.
size_t CharacterBytes(const unsigned char* text) {
  const unsigned char first = *text;
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  // Bounds of the second byte: no longer form than needed, no surrogate, nothing beyond the last character.
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (text[1] < least || text[1] > most) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if (text[i] < 0x80 || text[i] > 0xbf) return 0;
  }
  return bytes;
}

}  // namespace

std::string Name::Text() const {
  if (whole_ == nullptr) return std::string(part_);
  if (part_.empty()) return absl::StrCat(whole_->Text(), "[", index_, "]");
  return absl::StrCat(whole_->Text(), ".", part_);
}

absl::Status Refuse(v1::ErrorReason reason, const Name& field, std::string limit, std::string message) {
  client::RowError error;
  error.code = reason == v1::OUT_OF_RANGE ? absl::StatusCode::kOutOfRange : absl::StatusCode::kInvalidArgument;
  error.reason = reason;
  error.field = field.Text();
  error.limit = std::move(limit);
  error.message = std::move(message);
  return client::ToStatus(error);
}

absl::Status Missing(const Name& field) { return Refuse(v1::MISSING_FIELD, field, "", "null"); }

void Describe(const client::RowError& value, sortition_error* error) {
  *error = {};
  error->struct_size = sizeof(*error);
  error->code = static_cast<sortition_code>(value.code);
  error->reason = value.reason;
  error->reason_name = ReasonName(value.reason);
  error->field = value.field.c_str();
  error->limit = value.limit.c_str();
  error->message = value.message.c_str();
  error->retry_after_ns = static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Nanoseconds(value.retry_after)));
}

sortition_code Report(const absl::Status& status, sortition_error** error) noexcept {
  if (error == nullptr) return static_cast<sortition_code>(status.code());
  try {
    auto owned = std::make_unique<OwnedError>();
    if (std::optional<client::RowError> typed = client::ErrorOf(status)) {
      owned->value = *std::move(typed);
    } else {
      owned->value.code = status.code();
      owned->value.message = std::string(status.message());
    }
    Describe(owned->value, owned.get());
    *error = owned.release();
  } catch (...) {
    *error = nullptr;  // no memory even for the error: the code alone says what happened
  }
  return static_cast<sortition_code>(status.code());
}

absl::Status CheckSize(size_t size, size_t least, size_t most, const Name& name) {
  if (size >= least && size <= most && size % sizeof(size_t) == 0) return absl::OkStatus();
  return Refuse(v1::SIZE_MISMATCH, Name(name, "struct_size"),
                absl::StrCat(least, "..", most, ", a multiple of ", sizeof(size_t)),
                absl::StrCat(size, " is no size that this library, version ", sortition_version(), ", knows"));
}

absl::StatusOr<std::string> Text(const char* text, const Name& name) {
  if (text == nullptr) return std::string();
  for (const char* at = text; *at != 0;) {
    const size_t bytes = CharacterBytes(reinterpret_cast<const unsigned char*>(at));
    if (bytes == 0) return Refuse(v1::OUT_OF_RANGE, name, "UTF-8", "bytes that are not UTF-8");
    at += bytes;
  }
  return std::string(text);
}

void CopyText(absl::string_view text, char* buffer, size_t size) {
  if (buffer == nullptr || size == 0) return;
  const size_t bytes = std::min(text.size(), size - 1);
  std::copy_n(text.data(), bytes, buffer);
  buffer[bytes] = 0;
}

}  // namespace sortition::c

extern "C" {

const char* sortition_version(void) {
  static const std::string& version = *new std::string(sortition::service::Version());
  return version.c_str();
}

uint32_t sortition_abi_version(void) { return SORTITION_ABI_VERSION; }

uint32_t sortition_law_version(void) { return sortition::law::kLawVersion; }

void sortition_error_free(sortition_error* error) { delete static_cast<sortition::c::OwnedError*>(error); }

}  // extern "C"
