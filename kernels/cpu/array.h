// Memory for vector code. It grows, is never initialised, and may be written a little past the reserved size.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace sortition::kernels::cpu {

// Not thread-safe.
template <typename T>
class Array {
 public:
  static_assert(std::is_trivially_copyable_v<T> && 64 % sizeof(T) == 0);

  // Elements that may be written past the end of a reservation: a whole group.
  static constexpr size_t kPadding = 64;

  // Returns room for `count` elements or more, at the start of a cache line. Growing loses the content.
  T* Reserve(size_t count) {
    const size_t lines = ((count + kPadding) * sizeof(T) + sizeof(Line) - 1) / sizeof(Line);
    if (lines > lines_) {
      memory_.reset(new Line[lines]);
      lines_ = lines;
    }
    return data();
  }

  T* data() { return reinterpret_cast<T*>(memory_.get()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.get()); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::unique_ptr<Line[]> memory_;
  size_t lines_ = 0;
};

}  // namespace sortition::kernels::cpu
