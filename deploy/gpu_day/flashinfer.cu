// FlashInfer's kernels for top-k and top-p with C names, so that tests/bench/cuda/peers.py calls them without
// FlashInfer's package, whose kernels are compiled when they are first called. make.sh compiles this with FlashInfer's
// headers. Functions queue kernels on `stream` and return CUDA's error. All memory is the device's. Types: 0 f32, 1
// bf16.
#include <flashinfer/sampling.cuh>
#include <flashinfer/topk.cuh>

namespace {

using flashinfer::sampling::RadixRowState;

template <typename T>
int TopK(void* logits, int32_t* tokens, void* values, uint32_t rows, uint32_t k, uint32_t vocabulary, void* row_states,
         cudaStream_t stream) {
  // In order of the values, and reproducible, as FlashInfer asks for before top-p.
  return flashinfer::sampling::TopKDispatch<T, int32_t>(static_cast<T*>(logits), tokens, static_cast<T*>(values), rows,
                                                        k, vocabulary, static_cast<RadixRowState*>(row_states), true,
                                                        true, flashinfer::sampling::TopKTieBreak::None, stream);
}

}  // namespace

// The k largest logits of each row, from the largest on. `row_states`: 1 MiB, at first 0.
extern "C" int SortitionPeerTopK(int type, void* logits, int32_t* tokens, void* values, uint32_t rows, uint32_t k,
                                 uint32_t vocabulary, void* row_states, cudaStream_t stream) {
  switch (type) {
    case 0:
      return TopK<float>(logits, tokens, values, rows, k, vocabulary, row_states, stream);
    case 1:
      return TopK<nv_bfloat16>(logits, tokens, values, rows, k, vocabulary, row_states, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

// f32 logits, each row with its k, all other logits becoming -infinity.
extern "C" int SortitionPeerMaskTopK(float* logits, float* masked, int32_t* k, uint32_t rows, uint32_t vocabulary,
                                     void* row_states, cudaStream_t stream) {
  return flashinfer::sampling::RadixTopKMaskLogitsMultiCTA<float, int32_t>(
      logits, masked, k, rows, 0, vocabulary, static_cast<RadixRowState*>(row_states), stream);
}

// Draws one of `count` probabilities of each row after top-p. `valid`: a byte a row. `seed`: one number.
extern "C" int SortitionPeerTopP(float* probabilities, int32_t* tokens, bool* valid, uint32_t rows, float top_p,
                                 uint32_t count, uint64_t* seed, uint64_t* offset, cudaStream_t stream) {
  return flashinfer::sampling::TopPSamplingFromProb<float, int32_t>(
      probabilities, tokens, valid, nullptr, nullptr, rows, top_p, count, true, seed, 0, offset, 0, stream);
}
