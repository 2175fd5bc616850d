// The third kernel: one block for each chained row, which the first has read. y counts rows.
#include "kernels/cuda/chained.cuh"

namespace sortition::kernels::cuda {

extern "C" __global__ void __launch_bounds__(kThreads, 2) SortitionChain(BatchView batch) {
  if ((batch.states[blockIdx.y].pending & kPendingChain) == 0) return;
  OpenInput(batch);
  SampleChained(Row(batch, blockIdx.y), batch);
}

}  // namespace sortition::kernels::cuda
