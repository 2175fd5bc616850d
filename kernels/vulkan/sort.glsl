// Sorting of a few tokens in the workgroup's memory, and searching among them. Needs scan.glsl.

const u32 kMostSorted = 1024u;
shared u32 sorted_keys[kMostSorted];
shared u32 sorted_ids[kMostSorted];

// Returns the smallest power of two >= `count`, at least 2.
u32 SortedSize(u32 count) { return count <= 2u ? 2u : 1u << (32u - LeadingZeros(count - 1u)); }

// Sorts the first `size` entries of sorted_* by the order of tokens. `size` is a power of two. All threads call this.
void SortTokens(u32 size) {
  for (u32 run = 2u; run <= size; run *= 2u) {
    for (u32 gap = run / 2u; gap > 0u; gap /= 2u) {
      barrier();
      for (u32 i = thread; i < size / 2u; i += kThreads) {
        u32 a = 2u * i - (i & (gap - 1u));
        u32 b = a + gap;
        u32 key = sorted_keys[a];
        u32 id = sorted_ids[a];
        if (Before(key, id, sorted_keys[b], sorted_ids[b]) == ((a & run) == 0u)) continue;
        sorted_keys[a] = sorted_keys[b];
        sorted_ids[a] = sorted_ids[b];
        sorted_keys[b] = key;
        sorted_ids[b] = id;
      }
    }
  }
  barrier();
}

// Returns the number of sorted tokens before this one; `with_itself` counts an equal token, too.
u32 SortedBefore(Token token, u32 size, bool with_itself) {
  u32 count = 0u;
  for (u32 step = size; step > 0u; step /= 2u) {
    if (count + step > size) continue;
    u32 last = count + step - 1u;
    bool is_before = with_itself ? !Before(token.key, token.id, sorted_keys[last], sorted_ids[last])
                                 : Before(sorted_keys[last], sorted_ids[last], token.key, token.id);
    if (is_before) count += step;
  }
  return count;
}
