// The usual ones.
#include "tests/fuzz/mutate.h"

#include <algorithm>

namespace sortition::fuzz {
namespace {

class Mutation {
 public:
  Mutation(std::vector<uint8_t>* input, const std::vector<uint8_t>& other, std::mt19937_64* random)
      : input_(*input), other_(other), random_(*random) {}

  void Once() {
    switch (Below(7)) {
      case 0:
        return Flip();
      case 1:
        return Set();
      case 2:
        return Insert();
      case 3:
        return Erase();
      case 4:
        return Double();
      case 5:
        return Splice();
      default:
        return Overwrite();
    }
  }

 private:
  size_t Below(size_t bound) { return bound == 0 ? 0 : size_t(random_() % bound); }
  size_t Length() { return 1 + Below(random_() % 4 == 0 ? 64 : 4); }
  auto At(size_t offset) { return input_.begin() + std::ptrdiff_t(offset); }

  void Flip() {
    if (!input_.empty()) input_[Below(input_.size())] ^= uint8_t(1u << Below(8));
  }
  void Set() {
    constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, 0xfe, 64, 10};
    if (!input_.empty()) input_[Below(input_.size())] = kEdges[Below(std::size(kEdges))];
  }
  void Insert() {
    std::vector<uint8_t> bytes(Length());
    for (uint8_t& byte : bytes) byte = uint8_t(random_());
    input_.insert(At(Below(input_.size() + 1)), bytes.begin(), bytes.end());
  }
  void Erase() {
    const size_t from = Below(input_.size());
    input_.erase(At(from), At(from + std::min(Length(), input_.size() - from)));
  }
  void Double() {
    const size_t from = Below(input_.size());
    const std::vector<uint8_t> bytes(At(from), At(from + std::min(Length(), input_.size() - from)));
    input_.insert(At(Below(input_.size() + 1)), bytes.begin(), bytes.end());
  }
  void Splice() {
    const size_t from = Below(other_.size());
    const auto begin = other_.begin() + std::ptrdiff_t(from);
    input_.insert(At(Below(input_.size() + 1)), begin,
                  begin + std::ptrdiff_t(std::min(Length(), other_.size() - from)));
  }
  void Overwrite() {
    if (other_.empty() || input_.empty()) return;
    const size_t from = Below(other_.size());
    const size_t to = Below(input_.size());
    const size_t size = std::min({Length(), other_.size() - from, input_.size() - to});
    std::copy_n(other_.begin() + std::ptrdiff_t(from), size, At(to));
  }

  std::vector<uint8_t>& input_;
  const std::vector<uint8_t>& other_;
  std::mt19937_64& random_;
};

}  // namespace

void Mutate(std::vector<uint8_t>* input, const std::vector<uint8_t>& other, size_t most, std::mt19937_64* random) {
  Mutation mutation(input, other, random);
  for (uint64_t times = 1 + (*random)() % 8; times > 0; --times) mutation.Once();
  if (input->size() > most) input->resize(most);
}

}  // namespace sortition::fuzz
