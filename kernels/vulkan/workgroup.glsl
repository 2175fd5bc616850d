// What threads of a workgroup share, by atomics in its memory.

shared u32 shared_max;
shared u32 shared_sum_low;
shared u32 shared_sum_high;

// The largest `value` of any thread.
u32 MaxOfAll(u32 value) {
  barrier();
  if (thread == 0u) shared_max = 0u;
  barrier();
  atomicMax(shared_max, value);
  barrier();
  return shared_max;
}

u64 SumOfAll(u64 value) {
  barrier();
  if (thread == 0u) {
    shared_sum_low = 0u;
    shared_sum_high = 0u;
  }
  barrier();
  u32 before = atomicAdd(shared_sum_low, Low(value));
  u32 high = High(value) + (before + Low(value) < before ? 1u : 0u);
  if (high != 0u) atomicAdd(shared_sum_high, high);
  barrier();
  return Make64(shared_sum_low, shared_sum_high);
}

u32 CountOfAll(u32 value) {
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  if (value != 0u) atomicAdd(shared_count, value);
  barrier();
  return shared_count;
}

// A place in the list that shared_count counts, for the threads that list something.
u32 PlaceInList(bool is_listed) { return is_listed ? atomicAdd(shared_count, 1u) : 0u; }
