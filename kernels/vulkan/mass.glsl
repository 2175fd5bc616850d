// Masses of distributions: number of tokens, and sum of weights. Needs scan.glsl.

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

u32 PartialOfSection(u32 section) {
  return Area(KERNEL_PARTIALS(g_groups, g_row.edit_count)) + section * kPartialWords;
}

// Returns the sums that weigh.comp left, over all sections; `which`: kPartialProcessed or kPartialRaw.
Mass MassOfSections(u32 which) {
  Mass mass = NoMass();
  u32 sections = (g_groups + kSectionGroups - 1u) / kSectionGroups;
  for (u32 i = 0u; i < sections; ++i) {
    u32 at = PartialOfSection(i) + which;
    mass.sum = Add64(mass.sum, Make64(scratch[at], scratch[at + 1u]));
    mass.count += scratch[at + 2u];
  }
  return mass;
}

// Returns the mass of the kept tokens.
Mass MassOfKept() {
  u32 listed = ListGroups(g_last.key);
  Mass mass = NoMass();
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key != 0u && IsKept(token)) AddToMass(mass, token.key);
  }
  return MassOfAll(mass);
}

// Returns the mass of the tokens left after sample.comp, if weigh.comp has run for rows without a chain.
Mass MassOfSampled() {
  if (!kChained && g_row.top_k == 0u && g_row.top_p == 0u) return MassOfSections(kPartialProcessed);
  return MassOfKept();
}
