// The name of a field as refusals have it, put together only where one is refused.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sortition::service {

// Refers to the text it is made of; lives as long as the call that it is given to.
class FieldName {
 public:
  FieldName(const char* name) : name_(name) {}
  FieldName(const std::string& name) : name_(name) {}
  FieldName(absl::string_view name) : name_(name) {}
  // `name` of row `row` of a step.
  FieldName(int row, absl::string_view name) : row_(row), name_(name) {}

  std::string Text() const {
    return row_ == kNoRow ? std::string(name_) : absl::StrCat("step.rows[", row_, "].", name_);
  }

 private:
  static constexpr int kNoRow = -1;
  const int row_ = kNoRow;
  const absl::string_view name_;
};

}  // namespace sortition::service
