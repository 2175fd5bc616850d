// Threads of a subgroup speak to each other, and one of them goes to the workgroup's memory for all. Needs subgroup
// operations of the classes basic, ballot and arithmetic. All threads of a subgroup call these together.

bool SpeaksForNeighbours() { return subgroupElect(); }
u32 MaxOfNeighbours(u32 value) { return subgroupMax(value); }
u32 CountOfNeighbours(u32 value) { return subgroupAdd(value); }

// A subgroup has at most 128 threads: sums of 16 bits fit a word. What the upper word loses is beyond 2^64.
u64 SumOfNeighbours(u64 value) {
  u32 lower = subgroupAdd(Low(value) & 0xffffu);
  u32 middle = subgroupAdd(Low(value) >> 16);
  u32 upper = subgroupAdd(High(value));
  return Add64(Make64(lower, upper), ShiftLeft64(Make64(middle, 0u), 16u));
}

// A place in the list that shared_count counts, for the threads that list something.
u32 PlaceInList(bool is_listed) {
  uvec4 listed = subgroupBallot(is_listed);
  u32 count = subgroupBallotBitCount(listed);
  u32 first = 0u;
  if (count != 0u && subgroupElect()) first = atomicAdd(shared_count, count);
  return subgroupBroadcastFirst(first) + subgroupBallotExclusiveBitCount(listed);
}
