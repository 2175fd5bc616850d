// Scans a row's tokens: the listed groups' and the edited ones.
//
// Every thread of the workgroup calls these functions, at the same place. Their shared results do not depend on the
// order of threads: maxima, sums of integers, and sets whose order does not matter.
#include "kernels/vulkan/row.glsl"

shared u32 shared_count;
shared u32 shared_max;
shared u32 shared_sum_low;
shared u32 shared_sum_high;

#ifdef KERNEL_SUBGROUPS
// Reduces over a subgroup first; one of its threads then goes to the workgroup's memory for all. Needs subgroup
// operations of the classes basic, ballot and arithmetic. All threads of a subgroup call these together.

bool SpeaksForNeighbours() { return subgroupElect(); }
u32 MaxOfNeighbours(u32 value) { return subgroupMax(value); }
u32 CountOfNeighbours(u32 value) { return subgroupAdd(value); }

// A subgroup has at most 128 threads, so sums of 16 bits fit a word. The upper word loses only multiples of 2^64.
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
#else
// Without subgroups each thread goes to the workgroup's memory itself.

bool SpeaksForNeighbours() { return true; }
u32 MaxOfNeighbours(u32 value) { return value; }
u64 SumOfNeighbours(u64 value) { return value; }
u32 CountOfNeighbours(u32 value) { return value; }

// A place in the list that shared_count counts, for the threads that list something.
u32 PlaceInList(bool is_listed) { return is_listed ? atomicAdd(shared_count, 1u) : 0u; }
#endif

// Adds to the sum in the workgroup's memory, which begins at zero.
void AddToSum(u64 value) {
  u32 before = atomicAdd(shared_sum_low, Low(value));
  u32 high = High(value) + (before + Low(value) < before ? 1u : 0u);
  if (high != 0u) atomicAdd(shared_sum_high, high);
}

// Returns the largest `value` of any thread.
u32 MaxOfAll(u32 value) {
  barrier();
  if (thread == 0u) shared_max = 0u;
  barrier();
  value = MaxOfNeighbours(value);
  if (SpeaksForNeighbours()) atomicMax(shared_max, value);
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
  value = SumOfNeighbours(value);
  if (SpeaksForNeighbours()) AddToSum(value);
  barrier();
  return Make64(shared_sum_low, shared_sum_high);
}

u32 CountOfAll(u32 value) {
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  value = CountOfNeighbours(value);
  if (value != 0u && SpeaksForNeighbours()) atomicAdd(shared_count, value);
  barrier();
  return shared_count;
}

// The place of the distribution's maxima. LargestKey returns the largest of them.
u32 g_maxima;
u32 LargestKey() {
  u32 largest = 0u;
  for (u32 i = thread; i < g_groups; i += kThreads) largest = max(largest, scratch[g_maxima + i]);
  for (u32 i = thread; i < EditCount(); i += kThreads) largest = max(largest, EditedKey(i));
  return MaxOfAll(largest);
}

void LookAt(bool raw) {
  g_raw = raw;
  g_maxima = raw ? RawMaxima() : Maxima();
}

// Lists the groups that have a sent key >= `floor`, in no particular order, and returns their number.
u32 g_list;
u32 ListGroups(u32 floor) {
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  // All threads make the same number of rounds.
  for (u32 first = 0u; first < g_groups; first += kThreads) {
    u32 i = first + thread;
    bool is_listed = i < g_groups && scratch[g_maxima + min(i, g_groups - 1u)] >= floor;
    u32 place = PlaceInList(is_listed);
    if (is_listed) scratch[g_list + place] = i;
  }
  memoryBarrierBuffer();
  barrier();
  return shared_count;
}

// Returns the number of groups that have a sent key >= `floor`.
u32 CountOfGroups(u32 floor) {
  u32 count = 0u;
  for (u32 i = thread; i < g_groups; i += kThreads) {
    if (scratch[g_maxima + i] >= floor) ++count;
  }
  return CountOfAll(count);
}

struct Token {
  u32 key;  // 0 = none
  u32 id;
};

// Scan returns token `i` of the scan over `listed` groups, which has ScanLength tokens.
u32 ScanLength(u32 listed) { return listed * kGroupSize + EditCount(); }
Token Scan(u32 listed, u32 i) {
  Token token;
  u32 index = i - listed * kGroupSize;
  if (i < listed * kGroupSize) {
    token.id = scratch[g_list + i / kGroupSize] * kGroupSize + i % kGroupSize;
    token.key = SentKey(token.id);
  } else {
    token.id = EditedToken(index);
    token.key = EditedKey(index);
  }
  return token;
}

// The kept tokens are those from g_first to g_last in order. Only chains move g_first.
Token g_last;
Token g_first;
bool IsKept(Token token) {
  if (kChained && Before(token.key, token.id, g_first.key, g_first.id)) return false;
  return token.key > g_last.key || (token.key == g_last.key && token.id <= g_last.id);
}
void KeepAll() {
  g_first.key = kNone;
  g_first.id = 0u;
  g_last.key = 1u;
  g_last.id = kNone;
}

Scale g_scale;
Shape g_shape;  // in place of the scale, where there is a chain
u32 DistanceOf(u32 key) {
  if (kChained) return ShapedDistance(KeyBits(key), g_shape);
  return Distance(KeyBits(key), g_scale);
}
// Returns the least distance of any kept token with this key or a smaller one. Under adaptive-p distances do not follow
// the order.
u32 LeastDistanceOf(u32 key) {
  if (!kChained) return DistanceOf(key);
  u32 t = Distance(ShapedBits(KeyBits(min(key, g_first.key)), g_shape), g_shape.scale);
  if (!g_shape.is_adapted || t == kDead) return t;
  u32 p = ProbabilityOf(Weight(t), g_shape.share);
  return p < g_shape.target ? AdaptedDistance(p, g_shape.target) : 0u;
}
u64 WeightOf(u32 key) { return Weight(DistanceOf(key)); }

// The raw distribution's temperature is 1.
void ScaleFor(u32 max_key) {
  if (g_raw) {
    g_scale = ScaleOf(KeyBits(max_key), UnitTemperature());
  } else {
    g_scale = MakeScale(KeyBits(max_key), g_row.multiplier, g_row.exponent, g_row.window);
  }
}

// Opens the row as earlier kernels left it: the kept tokens and their distances. Returns the first kept token's key.
u32 OpenKept() {
  g_last.key = outputs[row].last_key;
  g_last.id = outputs[row].last_token;
  u32 max_key = outputs[row].max_key;
  if (!kChained) {
    ScaleFor(max_key);
    return max_key;
  }
  ChainOutput chain = outputs[row].chain;
  g_first.key = chain.first_key;
  g_first.id = chain.first_token;
  g_shape.temperature.multiplier = chain.multiplier;
  g_shape.temperature.exponent = chain.exponent;
  g_shape.temperature.window = chain.window;
  g_shape.dynamic = chain.temperature;
  g_shape.is_curved = chain.is_curved != 0u;
  g_shape.curve.max = chain.curve_max;
  g_shape.curve.inverse = chain.curve_inverse;
  g_shape.curve.square = chain.curve_square;
  g_shape.curve.cube = chain.curve_cube;
  g_shape.is_adapted = chain.is_adapted != 0u;
  g_shape.share.up = chain.share_up;
  g_shape.share.reciprocal = chain.share_reciprocal;
  g_shape.target = chain.target;
  g_shape.scale = ScaleFrom(KeyBits(chain.first_key), g_shape);
  return chain.first_key;
}

// Returns the smallest key that min-p keeps.
u32 MinPFloor(u32 max_key) {
  if (g_row.min_p_distance == kNone) return 1u;
  Shape shape = PlainShape(KeyBits(max_key));
  shape.scale = g_scale;
  return FirstKeyKept(kCutWithin, MakeBound(g_row.min_p_distance), max_key, shape);
}
