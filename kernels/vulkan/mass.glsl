// Masses of distributions: how many tokens, and what they weigh. Needs scan.glsl.

struct Mass {
  u64 sum;
  u32 count;
};

void AddToMass(inout Mass mass, u32 key) {
  mass.sum = Add64(mass.sum, WeightOf(key));
  ++mass.count;
}

Mass NoMass() {
  Mass mass;
  mass.sum = Make64(0u, 0u);
  mass.count = 0u;
  return mass;
}

Mass MassOfAll(Mass mass) {
  mass.sum = SumOfAll(mass.sum);
  mass.count = CountOfAll(mass.count);
  return mass;
}

u32 PartialOfChunk(u32 chunk) {
  return Area(KERNEL_PARTIALS(g_groups, g_row.edit_count)) + chunk * kPartialWords;
}

// What weigh.comp left of all chunks; `which`: kPartialProcessed or kPartialRaw.
Mass MassOfChunks(u32 which) {
  Mass mass = NoMass();
  u32 chunks = (g_groups + kChunkGroups - 1u) / kChunkGroups;
  for (u32 i = 0u; i < chunks; ++i) {
    u32 at = PartialOfChunk(i) + which;
    mass.sum = Add64(mass.sum, Make64(scratch[at], scratch[at + 1u]));
    mass.count += scratch[at + 2u];
  }
  return mass;
}

// Of the kept tokens.
Mass MassOfKept() {
  u32 listed = ListGroups(g_last.key);
  Mass mass = NoMass();
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key != 0u && IsKept(token)) AddToMass(mass, token.key);
  }
  return MassOfAll(mass);
}

// Of those that are left after sample.comp, where weigh.comp has run for rows without a chain.
Mass MassOfSampled() {
  if (!kChained && g_row.top_k == 0u && g_row.top_p == 0u) return MassOfChunks(kPartialProcessed);
  return MassOfKept();
}
