// A drafter's probabilities, as the host has laid them out.

// f32 bits of the probability with which the draft's distribution yields the token.
u32 DraftBits(u32 id) {
  if (g_row.draft_form == kDraftCertain) return id == g_row.given ? 0x3f800000u : 0u;
  if (g_row.draft_form == kDraftDense) return ElementBits(g_row.draft, g_row.draft_dtype, id);
  u32 first = 0u;
  u32 end = g_row.draft_count;
  while (first < end) {
    u32 middle = (first + end) / 2u;
    if (extras[g_row.draft + middle] < id) {
      first = middle + 1u;
    } else {
      end = middle;
    }
  }
  bool is_listed = first < g_row.draft_count && extras[g_row.draft + first] == id;
  return is_listed ? extras[g_row.draft + g_row.draft_count + first] : 0u;
}

// Whether they are probabilities, sum to 1 and give the draft some. Lists have been held to it when they arrived. All
// threads call this.
bool CheckDraft() {
  if (g_row.draft_form != kDraftDense) return true;
  u64 units = Make64(0u, 0u);
  u32 inverse = 0u;  // largest of ~id whose number is no probability
  for (u32 id = thread; id < g_row.vocabulary; id += kThreads) {
    u32 q = DraftBits(id);
    if (IsProbability(q)) {
      units = Add64(units, Make64(ProbabilityUnits(q), 0u));
    } else {
      inverse = max(inverse, ~id);
    }
  }
  inverse = MaxOfAll(inverse);
  units = SumOfAll(units);
  u32 error = kNone;
  u32 token = 0u;
  if (inverse != 0u) {
    error = kDraftNoProbability;
    token = ~inverse;
  } else if (!IsWhole(units)) {
    error = kDraftSum;
  } else if ((DraftBits(g_row.given) & 0x7fffffffu) == 0u) {
    error = kDraftImpossible;
    token = g_row.given;
  }
  if (thread == 0u) {
    outputs[row].draft_error = error;
    outputs[row].draft_error_token = token;
  }
  return error == kNone;
}
