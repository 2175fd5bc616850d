// Lays rows out for the device: the words of each row in each buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/row.h"
#include "kernels/vulkan/layout.h"
#include "kernels/vulkan/output.h"
#include "kernels/vulkan/shaders.h"

namespace sortition::kernels::vulkan {

// Rows that run together: a batch, or the part of it that the buffers hold. Not thread-safe.
class Chunk {
 public:
  struct Sizes {  // bytes
    uint64_t logits = 0;
    uint64_t inputs = 0;
    uint64_t extras = 0;
    uint64_t scratch = 0;
    uint64_t outputs = 0;
    uint64_t tops = 0;
    uint64_t Largest() const;
  };

  // Lays out one more row, unless one of the buffers would grow beyond `most_bytes`: false then, and nothing changes.
  // `request` and all it refers to stay alive and unchanged.
  bool Add(const RowRequest& request, uint64_t most_bytes);

  uint32_t rows() const { return uint32_t(requests_.size()); }
  const Sizes& sizes() const { return sizes_; }
  const std::vector<RowInput>& inputs() const { return inputs_; }

  // The kernels that the rows need, and their sizes.
  uint32_t max_vocabulary() const { return max_vocabulary_; }
  uint32_t sections() const { return sections_; }  // the longest row's
  uint32_t edits() const { return edits_; }        // the largest number that a row has
  uint32_t turns() const { return turns_; }        // the largest number of sums and searches that a row has
  // `chained`: for a shader that takes whole rows, its form for rows with a chain.
  bool Needs(Shader shader, bool chained = false) const { return (needs_[chained ? 1 : 0] >> int(shader) & 1) != 0; }

  // Fills the buffers of those names. O(vocabulary / 32) for a row with masks or edits.
  void WriteInputs(RowInput* inputs) const;
  void WriteExtras(uint32_t* extras);
  // Returns the dense probabilities of a row's drafter; empty if it has none. Their place is 16 * inputs()[row].draft
  // bytes into the logits.
  std::span<const std::byte> DenseDraftOf(uint32_t row) const;

  // Returns the output of a row from the device's output.
  RowOutput ReadOutput(uint32_t row, const RawOutput* outputs, const uint32_t* tops) const {
    return vulkan::ReadOutput(*requests_[row], inputs_[row], outputs[row], tops);
  }

 private:
  void Need(const RowInput& input, std::span<const Stage> chain);

  std::vector<const RowRequest*> requests_;
  std::vector<RowInput> inputs_;
  Sizes sizes_ = {.extras = 4 * kTableWords};
  uint32_t max_vocabulary_ = 0;
  uint32_t sections_ = 0;
  uint32_t edits_ = 0;
  uint32_t turns_ = 0;
  uint32_t needs_[2] = {};  // a bit for each Shader
};

}  // namespace sortition::kernels::vulkan
