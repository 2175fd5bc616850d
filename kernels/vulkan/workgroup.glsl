// Threads that have no neighbours to speak to: each goes to the workgroup's memory itself.

bool SpeaksForNeighbours() { return true; }
u32 MaxOfNeighbours(u32 value) { return value; }
u64 SumOfNeighbours(u64 value) { return value; }
u32 CountOfNeighbours(u32 value) { return value; }

// A place in the list that shared_count counts, for the threads that list something.
u32 PlaceInList(bool is_listed) { return is_listed ? atomicAdd(shared_count, 1u) : 0u; }
