// Finds the end of a prefix of the order by its number of tokens or by their weight, without sorting: a radix search
// through the digits of key and id, leading ones first. It reads fewer groups with each digit.
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/chain.glsl"

const u32 kBins = 256u;
shared u32 bins_low[kBins];
shared u32 bins_high[kBins];
shared u32 cut_digit;
shared u32 cut_before_low;
shared u32 cut_before_high;

void AddToBin(u32 bin, u64 value) {
  u32 before = atomicAdd(bins_low[bin], Low(value));
  u32 high = High(value) + (before + Low(value) < before ? 1u : 0u);
  if (high != 0u) atomicAdd(bins_high[bin], high);
}

// Adds bins to `before`, from the highest down, and finds the bin with which the sum reaches `target`. Leaves the digit
// and the sum before it in cut_*.
void FindBin(u64 before, Threshold target) {
  barrier();
  if (thread == 0u) {
    u64 sum = before;
    for (u32 i = kBins; i > 0u; --i) {
      u64 next = Add64(sum, Make64(bins_low[i - 1u], bins_high[i - 1u]));
      if (Reaches(next, target)) {
        cut_digit = i - 1u;
        break;
      }
      sum = next;
    }
    cut_before_low = Low(sum);
    cut_before_high = High(sum);
  }
  barrier();
}

u32 g_log_sum;  // of the entropy's terms
u32 g_mean;

u64 CountedAs(u32 what, u32 key) {
  if (what == kTokenWeights || (kChained && what == kByNearness)) return WeightOf(key);
  if (kChained && what == kTokenTerms) return EntropyTerm(DistanceOf(key), g_log_sum);
  return Make64(1u, 0u);
}

// Finds the shortest prefix whose counts sum to `target` or more, and returns its last token. `target` >= 1 and at most
// the sum of all counts. With kByNearness the returned key is the inverse of the token's gap. Compilers copy this
// function to each place that calls it, so a kernel calls it at one place.
Token FindCut(u32 what, Threshold target) {
  Token cut;
  cut.key = 0u;
  cut.id = 0u;
  u64 before = Make64(0u, 0u);
  u32 inverse = 0u;  // leading digits of ~id
  bool by_nearness = kChained && what == kByNearness;
  u32 digits = what == kGroupMaxima || by_nearness ? 4u : 7u;
  for (u32 digit = 0u; digit < digits; ++digit) {
    barrier();
    for (u32 i = thread; i < kBins; i += kThreads) {
      bins_low[i] = 0u;
      bins_high[i] = 0u;
    }
    u32 floor = g_last.key;
    if (digit != 0u && !by_nearness) floor = max(floor, digit < 4u ? cut.key << (32u - 8u * digit) : cut.key);
    u32 listed = ListGroups(floor);
    u32 length = what == kGroupMaxima ? listed : ScanLength(listed);
    for (u32 i = thread; i < length; i += kThreads) {
      Token token;
      if (what == kGroupMaxima) {
        token.key = scratch[g_maxima + scratch[g_list + i]];
        token.id = 0u;
      } else {
        token = Scan(listed, i);
      }
      if (token.key < floor || !IsKept(token)) continue;
      u32 key = by_nearness ? ~TypicalGap(DistanceOf(token.key), g_mean) : token.key;
      u32 bin;
      if (digit < 4u) {
        if (digit != 0u && key >> (32u - 8u * digit) != cut.key) continue;
        bin = key >> (24u - 8u * digit) & 255u;
      } else {
        u32 rest = 0xffffffu - token.id;
        if (key != cut.key || (digit != 4u && rest >> (56u - 8u * digit) != inverse)) continue;
        bin = rest >> (48u - 8u * digit) & 255u;
      }
      AddToBin(bin, CountedAs(what, token.key));
    }
    FindBin(before, target);
    before = Make64(cut_before_low, cut_before_high);
    if (digit < 4u) {
      cut.key = cut.key << 8 | cut_digit;
    } else {
      inverse = inverse << 8 | cut_digit;
    }
  }
  cut.id = 0xffffffu - inverse;
  return cut;
}
