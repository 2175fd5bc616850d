// The draw: the law's grouped race, run only where it can still be won.
//
// A group's owner, at the distance of the group's largest key, bounds the race keys of all of its tokens from below. So
// only groups whose bound does not lose to the best token so far are expanded. Groups with the smallest bounds go
// first, so that a good token is found early. Bounds prune; they decide nothing. Needs scan.glsl.
//
// Defined by the includer: a token's lag (kernels/law/functions/race.inc); false for a token that is not in the race.
bool LagOf(Token token, out u64 lag);
// Defined by the includer: the least lag of the tokens with keys of at most `key`.
bool LeastLagOf(u32 key, out u64 lag);
// The noise's key.
DrawKey g_draw;

const u32 kOctave = 1u;  // in the upper word of a race key

shared u32 best_low[kThreads];
shared u32 best_high[kThreads];
shared u32 best_key[kThreads];
shared u32 best_id[kThreads];
shared u32 likely_group;

struct Racer {
  u64 race_key;
  Token token;
};
Racer g_best;

u64 Never() { return Make64(0xffffffffu, 0x7fffffffu); }

bool Wins(u64 race_key, u32 id, Racer other) {
  if (SignedLess64(race_key, other.race_key)) return true;
  return !SignedLess64(other.race_key, race_key) && id < other.token.id;
}

u64 GroupWord(u32 group) { return WordOf(NoiseWords(group / 2u, kGroupTag, g_draw), group); }

void Run(Token token) {
  u64 lag;
  if (!LagOf(token, lag)) return;
  u64 word = GroupWord(token.id / kGroupSize);
  u64 a = NegLog2(Uniform(word));
  u64 log;
  if (Owner(word) == token.id % kGroupSize) {
    log = OwnerLog(a);
  } else {
    log = OtherLog(a, NegLog2(Uniform(WordOf(NoiseWords(token.id / 2u, kTokenTag, g_draw), token.id))));
  }
  u64 race_key = Add64(lag, log);
  if (!Wins(race_key, token.id, g_best)) return;
  g_best.race_key = race_key;
  g_best.token = token;
}

// Makes the best token of all threads every thread's best.
void ShareBest() {
  barrier();
  best_low[thread] = Low(g_best.race_key);
  best_high[thread] = High(g_best.race_key);
  best_key[thread] = g_best.token.key;
  best_id[thread] = g_best.token.id;
  for (u32 step = kThreads / 2u; step > 0u; step /= 2u) {
    barrier();
    if (thread < step) {
      u32 other = thread + step;
      Racer mine;
      mine.race_key = Make64(best_low[thread], best_high[thread]);
      mine.token.id = best_id[thread];
      if (Wins(Make64(best_low[other], best_high[other]), best_id[other], mine)) {
        best_low[thread] = best_low[other];
        best_high[thread] = best_high[other];
        best_key[thread] = best_key[other];
        best_id[thread] = best_id[other];
      }
    }
  }
  barrier();
  g_best.race_key = Make64(best_low[0], best_high[0]);
  g_best.token.key = best_key[0];
  g_best.token.id = best_id[0];
}

u64 BoundAt(u32 index) {
  return Make64(scratch[Area(KERNEL_BOUNDS_LOW(g_groups)) + index],
                scratch[Area(KERNEL_BOUNDS_HIGH(g_groups)) + index]);
}
void SetBound(u32 index, u64 bound) {
  scratch[Area(KERNEL_BOUNDS_LOW(g_groups)) + index] = Low(bound);
  scratch[Area(KERNEL_BOUNDS_HIGH(g_groups)) + index] = High(bound);
}

// Writes the bounds of the listed groups and returns the smallest.
u64 BoundGroups(u32 listed, u32 max_key) {
  g_best.race_key = Never();
  g_best.token.key = 0u;
  g_best.token.id = kNone;
  if (thread == 0u) likely_group = kNone;
  barrier();
  for (u32 i = thread; i < listed; i += kThreads) {
    u32 group = scratch[g_list + i];
    u32 key = scratch[g_maxima + group];
    if (key == max_key) atomicMin(likely_group, i);
    u64 bound = Never();
    u64 lag;
    if (LeastLagOf(key, lag)) bound = Add64(lag, OwnerLog(NegLog2(Uniform(GroupWord(group)))));
    SetBound(i, bound);
    if (!SignedLess64(bound, g_best.race_key)) continue;
    g_best.race_key = bound;
  }
  ShareBest();
  u64 least = g_best.race_key;
  g_best.race_key = Never();
  return least;
}

// Runs the race of the groups with a bound of at most `most`. The first call also takes entry `likely_group` of the
// list and the edited tokens. No group races twice.
void ExpandGroups(u32 listed, u64 most, bool is_first) {
  u32 survivors = Area(KERNEL_SURVIVORS(g_groups));
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  for (u32 i = thread; i < listed; i += kThreads) {
    u64 bound = BoundAt(i);
    if (!SignedLess64(bound, Never())) continue;
    if (SignedLess64(most, bound) && !(is_first && i == likely_group)) continue;
    SetBound(i, Never());
    scratch[survivors + atomicAdd(shared_count, 1u)] = scratch[g_list + i];
  }
  memoryBarrierBuffer();
  barrier();
  u32 count = shared_count;
  u32 list = g_list;
  g_list = survivors;
  u32 length = is_first ? ScanLength(count) : count * kGroupSize;
  for (u32 i = thread; i < length; i += kThreads) {
    Token token = Scan(count, i);
    if (token.key == 0u || !IsKept(token)) continue;
    Run(token);
  }
  g_list = list;
  ShareBest();
}

// Returns the kept token with the smallest race key; its id is kNone if no token is in the race.
Token Race(u32 max_key) {
  u32 listed = ListGroups(g_last.key);
  u64 least = BoundGroups(listed, max_key);
  // Takes bounds from the smallest up, in steps of octaves, until the next one cannot win.
  for (u32 octaves = 0u; octaves < 512u; octaves = max(2u, 2u * octaves)) {
    u64 reach = Add64(least, Make64(0u, octaves * kOctave));
    bool all = octaves != 0u && SignedLess64(g_best.race_key, reach);
    if (all) reach = g_best.race_key;
    ExpandGroups(listed, reach, octaves == 0u);
    if (all) break;
  }
  return g_best.token;
}
