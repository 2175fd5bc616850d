// The same as workgroup.glsl where threads of a subgroup can speak to each other: one of each subgroup goes to the
// workgroup's memory. Needs subgroup operations of the classes basic, ballot and arithmetic.

shared u32 shared_max;
shared u32 shared_sum_low;
shared u32 shared_sum_high;

// The largest `value` of any thread.
u32 MaxOfAll(u32 value) {
  barrier();
  if (thread == 0u) shared_max = 0u;
  barrier();
  u32 largest = subgroupMax(value);
  if (subgroupElect()) atomicMax(shared_max, largest);
  barrier();
  return shared_max;
}

// Adds to the sum that begins at zero; `value` of a whole subgroup.
void AddToSum(u64 value) {
  u32 before = atomicAdd(shared_sum_low, Low(value));
  u32 high = High(value) + (before + Low(value) < before ? 1u : 0u);
  if (high != 0u) atomicAdd(shared_sum_high, high);
}

u64 SumOfAll(u64 value) {
  barrier();
  if (thread == 0u) {
    shared_sum_low = 0u;
    shared_sum_high = 0u;
  }
  barrier();
  // A subgroup has at most 128 threads: sums of 16 bits fit a word. What the upper word loses is beyond 2^64.
  u32 lower = subgroupAdd(Low(value) & 0xffffu);
  u32 middle = subgroupAdd(Low(value) >> 16);
  u32 upper = subgroupAdd(High(value));
  if (subgroupElect()) {
    AddToSum(Add64(Make64(lower, upper), ShiftLeft64(Make64(middle, 0u), 16u)));
  }
  barrier();
  return Make64(shared_sum_low, shared_sum_high);
}

u32 CountOfAll(u32 value) {
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  u32 count = subgroupAdd(value);
  if (count != 0u && subgroupElect()) atomicAdd(shared_count, count);
  barrier();
  return shared_count;
}

// A place in the list that shared_count counts, for the threads that list something. All threads of a subgroup call it
// together.
u32 PlaceInList(bool is_listed) {
  uvec4 listed = subgroupBallot(is_listed);
  u32 count = subgroupBallotBitCount(listed);
  u32 first = 0u;
  if (count != 0u && subgroupElect()) first = atomicAdd(shared_count, count);
  return subgroupBroadcastFirst(first) + subgroupBallotExclusiveBitCount(listed);
}
