// Lays rows out for the device: the bytes of each row in each buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/input.h"
#include "kernels/cuda/layout.h"
#include "kernels/row.h"

namespace sortition::kernels::cuda {

// Path of a row's logits to the kernels' input, a multiple of kLogitsAlignment.
enum class LogitsPath {
  kUpload,  // from the host
  kCopy,    // copied from elsewhere on the device
  kNone,    // they are there
};

// Rows that run together: a batch, or the part of it that the buffers hold. Not thread-safe.
//
// Three buffers. The host writes the upload: inputs, masks, edits, inputs of chained rows, then logits. The work is the
// device's own: states and scratch, then the logits that it copies. The host reads the download: outputs, then tokens,
// at the end the kept tokens, as far as they were written.
class Chunk {
 public:
  struct Sizes {          // bytes
    uint64_t extras = 0;  // masks, edits and inputs of chained rows
    uint64_t logits = 0;
    uint64_t scratch = 0;
    uint64_t copies = 0;  // logits
    uint64_t tokens = 0;  // first tokens, and places of requested ones
    uint64_t kept = 0;    // room for the most tokens that may be kept
  };

  // Lays out one more row, unless upload and work together would grow beyond `most_bytes`: false then, and nothing
  // changes. `request` and all it refers to stay alive and unchanged. With kNone `request.logits` is an address on the
  // device.
  bool Add(const RowRequest& request, uint64_t most_bytes, LogitsPath path = LogitsPath::kUpload);

  uint32_t rows() const { return uint32_t(requests_.size()); }
  uint64_t upload_bytes() const { return LogitsOffset() + sizes_.logits; }
  uint64_t work_bytes() const { return CopiesOffset() + sizes_.copies; }
  uint64_t download_bytes() const { return KeptOffset() + sizes_.kept; }
  uint64_t first_download_bytes() const { return KeptOffset(); }  // all but the kept tokens
  uint64_t states_bytes() const { return StatesBytes(); }         // at the front of the work, zeros before a launch
  LaterKernels needed() const { return needed_; }
  Geometry geometry(uint32_t multiprocessors) const { return ChooseGeometry(rows(), largest_groups_, multiprocessors); }

  // Returns where the row's logits, `*bytes` bytes, belong in the host's `upload`. Only rows of kUpload have any.
  std::byte* LogitsOf(uint32_t row, std::byte* upload, size_t* bytes) const;

  // Bytes of a row that the device has to copy into the work buffer. Only kCopy rows have any. There they lie in the
  // order in which rows were added.
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  Range CopyOf(uint32_t row) const;

  // Fills the host's `upload`, except the logits. The other arguments are the buffers' addresses on the device.
  void WriteInputs(std::byte* upload, uint64_t device_upload, uint64_t device_work, uint64_t device_download) const;

  // The argument of the kernels.
  BatchView MakeView(uint64_t device_upload, uint64_t device_work, uint64_t device_download,
                     uint32_t multiprocessors) const;

  // Returns the range of the row's requested kept tokens in the download; may be empty. Reads the rest of it.
  Range KeptOf(uint32_t row, const std::byte* download) const;

  // Returns the output of a row from the download.
  RowOutput ReadOutput(uint32_t row, const std::byte* download) const;

 private:
  // The begins of a row's parts, in bytes from the start of the parts' areas.
  struct PartOffsets {
    LogitsPath path;
    uint64_t mask;
    uint64_t edits;
    uint64_t logits;
    uint64_t scratch;
    uint64_t processed_top;
    uint64_t raw_top;
    // Members for chained rows:
    bool is_chained;
    uint64_t chained;
    uint64_t requested;
    uint64_t draft;  // dense probabilities, or a list's tokens
    uint64_t draft_bits;
    uint64_t output;
    uint64_t processed_places;
    uint64_t raw_places;
    uint64_t kept;
  };

  ChainedInput LayChainedInput(uint32_t row, std::byte* upload, uint64_t device_upload, uint64_t device_download) const;

  uint64_t StatesBytes() const { return uint64_t{sizeof(RowState)} * rows(); }
  uint64_t InputsBytes() const { return uint64_t{sizeof(RowInput)} * rows(); }
  uint64_t OutputsBytes() const { return uint64_t{sizeof(RawOutput)} * rows(); }
  uint64_t ExtrasOffset() const;  // in the upload
  uint64_t LogitsOffset() const { return ExtrasOffset() + sizes_.extras; }
  uint64_t ScratchOffset() const;  // in the work
  uint64_t CopiesOffset() const { return ScratchOffset() + sizes_.scratch; }
  uint64_t TokensOffset() const;  // in the download
  uint64_t KeptOffset() const { return TokensOffset() + sizes_.tokens; }

  std::vector<const RowRequest*> requests_;
  std::vector<RowInput> inputs_;
  std::vector<PartOffsets> places_;
  Sizes sizes_;
  uint32_t largest_groups_ = 1;
  LaterKernels needed_;
};

}  // namespace sortition::kernels::cuda
