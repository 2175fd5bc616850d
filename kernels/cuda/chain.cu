// The third kernel: one block for each chained row, which the first has read. y counts rows.
#include "kernels/cuda/chained.cuh"

namespace sortition::kernels::cuda {

extern "C" __global__ void __launch_bounds__(kThreads, 2) SortitionChain(BatchView batch) {
  KERNEL_SHARED(Shared, shared);
  if ((batch.states[blockIdx.y].pending & kPendingChain) == 0) return;
  OpenInput(shared, batch);
  SampleChained(Row(shared, batch, blockIdx.y), batch);
}

}  // namespace sortition::kernels::cuda
