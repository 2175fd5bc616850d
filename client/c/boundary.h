// The boundary between C callers and the C++ classes: errors as structs, no exceptions, structs of any known size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/c/include/sortition/sortition.h"
#include "client/cpp/transport/wire_errors.h"

namespace sortition::c {

// The name of an argument, such as batch.rows[2].logits. It is put together only if there is an error. Refers to its
// parts, which must outlive it.
class Name {
 public:
  Name(const char* text) : part_(text) {}
  Name(absl::string_view text) : part_(text) {}
  Name(const Name& whole, const char* part) : whole_(&whole), part_(part) {}
  Name(const Name& array, size_t index) : whole_(&array), index_(index) {}

  std::string Text() const;

 private:
  const Name* whole_ = nullptr;
  absl::string_view part_;  // empty: an element
  size_t index_ = 0;
};

// Returns an error of the caller, with the contract's type.
absl::Status Refuse(v1::ErrorReason reason, const Name& field, std::string limit, std::string message);
// Returns the error of a null pointer.
absl::Status Missing(const Name& field);

// Fills `error`, which refers to `value`.
void Describe(const client::RowError& value, sortition_error* error);

// Stores a new error in *error, if `error` is not null, and returns its code.
sortition_code Report(const absl::Status& status, sortition_error** error) noexcept;

// Runs `body`, which returns a status. Returns its code; an exception becomes an error, too.
template <typename Body>
sortition_code Call(sortition_error** error, const Body& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    const absl::Status status = body();
    return status.ok() ? SORTITION_OK : Report(status, error);
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("memory"), error);
  } catch (const std::exception& exception) {
    return Report(absl::InternalError(exception.what()), error);
  } catch (...) {
    return Report(absl::InternalError("an exception"), error);
  }
}

// Runs `make`, which returns a StatusOr of a pointer, and stores this in *made. Stores null if it fails.
template <typename T, typename Maker>
sortition_code Make(T** made, const Name& name, sortition_error** error, const Maker& make) noexcept {
  if (made != nullptr) *made = nullptr;
  return Call(error, [&]() -> absl::Status {
    if (made == nullptr) return Missing(name);
    auto result = make();
    if (!result.ok()) return result.status();
    *made = *result;
    return absl::OkStatus();
  });
}

// Returns the size of a struct that ends with `member`.
#define SORTITION_C_SIZE_TO(type, member) \
  ((offsetof(type, member) + sizeof(type::member) + sizeof(size_t) - 1) / sizeof(size_t) * sizeof(size_t))

// Returns OK if a struct of the caller has the size of a version that is known here. Every size is a multiple of
// size_t's, because its first field is one.
absl::Status CheckSize(size_t size, size_t least, size_t most, const Name& name);

// Returns the caller's struct. Fields beyond its size are 0. `least` is the size without the fields that a caller may
// leave out.
template <typename T>
absl::StatusOr<T> Read(const T* given, size_t least, const Name& name) {
  if (given == nullptr) return Missing(name);
  size_t size;
  std::memcpy(&size, given, sizeof(size));
  if (absl::Status status = CheckSize(size, least, sizeof(T), name); !status.ok()) return status;
  T copy = {};
  std::memcpy(&copy, given, size);
  if constexpr (requires { copy.reserved; }) {
    if (copy.reserved != 0) return Refuse(v1::OUT_OF_RANGE, Name(name, "reserved"), "0", "not 0");
  }
  return copy;
}

// Fills the caller's struct as far as its size says. `value.struct_size` must be that size.
template <typename T>
void Fill(const T& value, T* out) {
  std::memcpy(out, &value, value.struct_size);
}

// Reads element `index` of an array of structs, which all have the size of the first one.
template <typename T>
absl::StatusOr<T> ReadElement(const T* array, size_t index, size_t least, const Name& name) {
  size_t stride;
  std::memcpy(&stride, array, sizeof(stride));
  if (absl::Status status = CheckSize(stride, least, sizeof(T), Name(name, size_t{0})); !status.ok()) return status;
  const Name element(name, index);
  auto read = Read(reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + index * stride), least, element);
  if (read.ok() && read->struct_size != stride) {
    return Refuse(v1::SIZE_MISMATCH, Name(element, "struct_size"), absl::StrCat(stride),
                  absl::StrCat(read->struct_size, ", where the first one has another size"));
  }
  return read;
}

// Returns the text, empty for null. Refuses text that is not UTF-8.
absl::StatusOr<std::string> Text(const char* text, const Name& name);

template <typename T>
absl::StatusOr<std::span<const T>> Span(const T* data, size_t count, const Name& name) {
  if (data == nullptr && count != 0) return Missing(name);
  return std::span<const T>(data, count);
}

// Copies the text to the caller's buffer, with a 0 byte at its end, cut to the buffer's size. `buffer` may be null.
void CopyText(absl::string_view text, char* buffer, size_t size);

}  // namespace sortition::c
