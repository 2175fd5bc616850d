// One row of the law from logits to the answer, options as people write them, and published rows. Uses law.js.
"use strict";

function inOrder(bits) {
  const live = [];
  for (let id = 0; id < bits.length; ++id) if (bits[id] !== MASKED) live.push((WORD - sortKey(bits[id])) * 2 ** 20 + id);
  return Array.from(Float64Array.from(live).sort(), (packed) => packed % 2 ** 20);
}

// log2 of a sum of weights, Q32; never below that of the power of two below the sum.
function clampedLog(sum) {
  const log = log2Raw(sum), least = BigInt(bitLength(sum) - 1) << 32n;
  return log > least ? log : least;
}

class Distribution {
  constructor(ids, bits, maxBits, distances, temperature) {
    Object.assign(this, { ids, bits, maxBits, distances, temperature });
    this.weightSum = total(distances.map(weight));
  }
  place(token) {
    if (!this.places) this.places = new Map(this.ids.map((id, i) => [id, i]));
    return this.places.has(token) ? this.places.get(token) : -1;
  }
  bitsAndRank(token) {
    const place = this.place(token);
    return place < 0 ? [MASKED, 0] : [this.bits[place], place + 1];
  }
  log() { return Number(clampedLog(this.weightSum) - UNIT_LOG); }
  logprobBits(bits) {
    if (bits === MASKED) return MASKED;
    return bitsOf((floatOf(bits) - floatOf(this.maxBits)) / this.temperature - this.log() * LN2_33);
  }
  entropy() {
    const surplus = this.distances.reduce((sum, t) => sum + ((BigInt(weight(t)) * BigInt(t)) >> 26n), 0n);
    return [this.weightSum, surplus, bitsOf(this.log() * LN2_33 + (Number(surplus) / Number(this.weightSum)) * LN2)];
  }
}

// The scale and the temperature of the bits that a chain leaves; `dynamic` is its dynamic temperature, Q8.24.
function shownTemperature(stages, dynamic) {
  let found = [UNIT_TEMPERATURE, 1];
  for (const [number, multiplier, exponent, window, bits] of stages) {
    if (number === 0) found = [[multiplier, exponent | 0, window], floatOf(bits)];
    if (number === 12) found = [dynamicScale(dynamic), dynamic * 2 ** -24];
    if (number === 13) found = [UNIT_TEMPERATURE, 1];
  }
  return found;
}

// Smoothing has no part in the distribution after edits and temperature.
const temperedTemperature = (stages, dynamic) => shownTemperature(stages.filter(([number]) => number !== 13), dynamic);

const startsOf = (distances) => distances.map((t) => (t === DEAD ? null : BigInt(t) << 6n));

// A token's rank in the race, and how far its race key is above the smallest, in Q32 octaves and in nats. The rank is 0
// and the distance is the largest number, or infinite, if the token does not race.
function racePlace(ids, distances, noise, token) {
  const starts = startsOf(distances), at = ids.indexOf(token);
  if (at < 0 || starts[at] === null) return [0, 2n ** 63n - 1n, Infinity];
  const keys = ids.map((id, i) => (starts[i] === null ? null : raceKey(id, starts[i], noise))), own = keys[at];
  const isAhead = (key, i) => key !== null && (key < own || (key === own && ids[i] < token));
  const least = keys.reduce((a, b) => (b !== null && b < a ? b : a), own);
  return [1 + keys.filter(isAhead).length, own - least, Number(own - least) * LN2_33];
}

// `row`: bits (one for each live id), compiled, noise {key, position, stream}, and where there are any: maskNan, edits,
// allowedTokens, allowedBits, state, score, verify, draft. The answer has the whole record only if `isRecorded`.
function answerOf(row, isRecorded = false) {
  const raw = rawLogits(row), bits = changedLogits(row, raw);
  const ids = inOrder(bits);
  if (ids.length === 0) throw new RowFailure("no_live_token", 0);
  if (row.verify !== undefined && row.draft.form === "dense") checkDenseDraft(row);
  const rawIds = inOrder(raw), rawBits = rawIds.map((id) => raw[id]), unit = new Scale(rawBits[0], UNIT_TEMPERATURE);
  const answer = { state: 0n, dynamic: 0 };
  answer.raw = new Distribution(rawIds, rawBits, rawBits[0], rawBits.map((b) => unit.distance(b)), 1);
  if (row.compiled.greedy) {
    answer.processed = new Distribution([ids[0]], [bits[ids[0]]], bits[ids[0]], [0], 1);
    Object.assign(answer, settle(row, [ids[0]], [0]));
    if (isRecorded) record(answer, row, bits, [], [ids[0]], [0]);
    return answer;
  }
  const kept = new Kept(ids, ids.map((id) => bits[id]), bits.length, row.noise, row.state || 0n);
  const stages = stagesOf(row.compiled);
  for (const stage of stages) kept.run(stage);
  const [shown, first] = kept.shownBits(), last = stages[stages.length - 1];
  answer.processed = new Distribution(kept.ids, shown, first, kept.drawn(), kept.shown);
  answer.dynamic = kept.dynamic;
  Object.assign(answer, settle(row, kept.ids, kept.drawn()));
  if (row.compiled.chain && carriesState(last[0])) answer.state = kept.nextState(last, answer.processed.place(answer.token));
  if (isRecorded) record(answer, row, bits, stages, kept.ids, kept.drawn());
  return answer;
}

// Adds the tempered distribution, the kept tokens' sum in it, and the place in the race.
function record(answer, row, bits, stages, kept, distances) {
  const ids = inOrder(bits), ordered = ids.map((id) => bits[id]);
  const [scale, temperature] = temperedTemperature(stages, answer.dynamic), unit = new Scale(ordered[0], scale);
  const tempered = new Distribution(ids, ordered, ordered[0], ordered.map((b) => unit.distance(b)), temperature);
  const keptSum = kept.reduce((sum, id) => sum + BigInt(weight(unit.distance(bits[id]))), 0n);
  Object.assign(answer, { tempered, keptSum, racePlace: racePlace(kept, distances, row.noise, answer.token) });
}

// The bits of the logarithm of a share of a sum of weights.
function logShareBits(part, whole) {
  return part === 0n ? MASKED : bitsOf(Number(clampedLog(part) - clampedLog(whole)) * LN2_33);
}

function stagesOf(compiled) {
  if (compiled.chain && compiled.chain.length) return compiled.chain;
  const plain = [[0, compiled.multiplier, compiled.exponent, compiled.window, bitsOf(compiled.temperature)]];
  if (compiled.min_p_distance !== WORD) plain.push([1, compiled.min_p_distance]);
  if (compiled.top_k) plain.push([2, compiled.top_k]);
  if (compiled.top_p) plain.push([3, compiled.top_p]);
  return plain;
}

function rawLogits(row) {
  return Array.from(row.bits, (bits, id) => {
    const size = magnitude(bits);
    if (size > NAN_ABOVE && !row.maskNan) throw new RowFailure("nan", id);
    if (!(bits >>> 31) && size >= LIMIT && size <= NAN_ABOVE) throw new RowFailure("logit_too_large", id);
    return canonical(bits);
  });
}

function changedLogits(row, raw) {
  const allowed = row.allowedTokens && new Set(row.allowedTokens), words = row.allowedBits;
  const bits = raw.map((b, id) => {
    const passes = (!allowed || allowed.has(id)) && (!words || (words[id >>> 5] >>> (id & 31)) & 1);
    return passes ? b : MASKED;
  });
  let failing = -1;
  for (const [token, flags, bias, penalty] of row.edits || []) {
    const steps = [], { repetition, inverse_repetition } = row.compiled;
    if (bias) steps.push((x) => x + floatOf(bias));
    if (flags & 2 && repetition) steps.push((x) => x * floatOf(x < 0 ? repetition : inverse_repetition));
    if (penalty) steps.push((x) => x + floatOf(penalty));
    if (flags & 1) bits[token] = MASKED;
    for (const step of steps) {
      if (bits[token] === MASKED) break;
      bits[token] = flush(bitsOf(step(floatOf(bits[token]))));
      if (magnitude(bits[token]) < LIMIT) continue;
      if (!(bits[token] >>> 31)) {
        failing = failing < 0 ? token : Math.min(failing, token);
        break;
      }
      bits[token] = MASKED;
    }
  }
  if (failing >= 0) throw new RowFailure("logit_too_large", failing);
  return bits;
}

function settle(row, ids, distances) {
  if (row.score !== undefined) return { token: row.score };
  if (row.verify !== undefined) return verified(row, ids, distances);
  return { token: race(ids, startsOf(distances), row.noise) };
}

function verified(row, ids, distances) {
  const w = distances.map((t) => BigInt(weight(t))), sum = w.reduce((a, b) => a + b, 0n);
  const { key, position, stream } = row.noise, [x, y, z, u] = philox(0, position, stream, TAGS.rejection, key);
  const place = ids.indexOf(row.verify), chance = (BigInt(u) << 32n) | BigInt(z), draft = draftWeights(row, sum);
  if (place >= 0 && (chance * draft(row.verify)) >> 64n < w[place]) return { token: row.verify, accepted: true };
  let left = w.map((a, i) => a - draft(ids[i]));
  if (!left.some((r) => r > 0n)) left = w;
  const starts = left.map((r) => (r > 0n ? UNIT_LOG - log2Raw(r) : null));
  return { token: race(ids, starts, { key: [x, y], position, stream }), accepted: false };
}

// v of a token: floor(q * S).
function draftWeights(row, sum) {
  const { form, tokens, bits, rest } = row.draft;
  if (form === "certain") return (token) => (token === row.verify ? sum : 0n);
  const listed = new Map(tokens.map((token, i) => [token, bits[i]]));
  return (token) => scaled(listed.has(token) ? listed.get(token) : rest, sum);
}

function scaled(bits, factor) {
  const size = magnitude(bits);
  if (size < 0x00800000) return 0n;
  return (BigInt((size & 0x7fffff) | 0x800000) * factor) >> BigInt(150 - (size >>> 23));
}

function checkDenseDraft(row) {
  const q = new Uint32Array(row.bits.length).fill(row.draft.rest);
  row.draft.tokens.forEach((token, i) => { q[token] = row.draft.bits[i]; });
  const wrong = q.findIndex((bits) => bits > 0x3f800000 && bits !== 0x80000000);
  if (wrong >= 0) throw new RowFailure("draft_no_probability", wrong);
  const off = q.reduce((sum, bits) => sum + Number(scaled(bits, 1n << 30n)), 0) - 2 ** 30;
  if (Math.abs(off) > 10737418) throw new RowFailure("draft_sum", 0);
  if (magnitude(q[row.verify]) < 0x00800000) throw new RowFailure("draft_impossible", row.verify);
}

// --- published rows (LAW.md, section 10)

function shapedElements({ vocabulary, dtype, logits: { shape, seed } }) {
  return Array.from({ length: vocabulary }, (_, id) => {
    const [x, y] = philox(id, 0, 0, 0, [seed, 0]);
    const n = (x & 255) + ((x >>> 8) & 255) + ((x >>> 16) & 255) + (x >>> 24) - 510;
    let logit = y % 512 === 0 ? (n + 512 + ((y >>> 9) % 512)) / 64 : n / 64;
    if (shape === "flat") logit = n / 4096;
    if (shape === "ties") logit = Math.floor(n / 32) / 2;
    if (shape === "holes" && y % 4 === 1) logit = -Infinity;
    const bits = bitsOf(logit);
    return dtype === "f32" ? bits : dtype === "bf16" ? bits >>> 16 : halfOf(logit, bits);
  });
}

// The f16 of a number that f16 holds.
function halfOf(value, bits) {
  const sign = (bits >>> 16) & 0x8000, exponent = ((bits >>> 23) & 255) - 112;
  if (value === -Infinity) return 0xfc00;
  if (exponent <= 0) return sign | (Math.abs(value) * 2 ** 24);
  return sign | (exponent << 10) | ((bits >>> 13) & 0x3ff);
}

const keyOf = (seed) => [Number(BigInt(seed) & 0xffffffffn), Number(BigInt(seed) >> 32n)];

function publishedRow(row) {
  const elements = row.logits.elements || shapedElements(row), draft = row.draft || { form: "certain" };
  let allowedBits = row.allowed_bits;
  if (row.allowed_bits_shape) {
    allowedBits = Array.from({ length: Math.ceil(row.vocabulary / 32) }, (_, i) =>
      philox(i, 0, 0, 0, [1, 0])[0] | 0x00ff00ff);
  }
  const temperature = row.compiled.greedy ? 1 : floatOf(row.options.temperature_bits), dtype = draft.dtype || "f32";
  return {
    bits: widen(elements, row.dtype), compiled: { ...row.compiled, temperature }, maskNan: row.compiled.mask_nan,
    noise: { key: keyOf(row.noise.seed), position: row.noise.position, stream: row.noise.stream }, edits: row.patches,
    allowedTokens: row.allowed_tokens, allowedBits, state: BigInt(row.sampler_state || 0), score: row.score,
    verify: row.verify, draft: { form: draft.form, tokens: draft.tokens || [], rest: widen([draft.rest || 0], dtype)[0],
      bits: widen(draft.elements || [], dtype) },
  };
}

// The answer to a published row in the form of the file.
function publishedAnswer(row) {
  const { asks, raw_top, processed_top, tempered_top } = row.compiled;
  let got;
  try {
    got = answerOf(publishedRow(row), ["tempered", "kept_log_mass", "race_place"].some((ask) => asks.includes(ask)));
  } catch (failure) {
    if (failure instanceof RowFailure) return { error: failure.kind, error_token: failure.token };
    throw failure;
  }
  const out = { token: got.token }, requested = row.requested || [];
  if (got.accepted !== undefined) out.accepted = got.accepted;
  if (["processed", "kept_count", "kept_tokens"].some((ask) => asks.includes(ask))) out.kept = got.processed.ids.length;
  const text = (distribution, first) => {
    const [bits, rank] = distribution.bitsAndRank(got.token), logprob = (b) => distribution.logprobBits(b);
    const top = distribution.ids.slice(0, first).map((id, i) => [id, distribution.bits[i], logprob(distribution.bits[i])]);
    const places = requested.map((id) => distribution.bitsAndRank(id)).map(([b, r]) => [b, r, logprob(b)]);
    return { max_bits: distribution.maxBits, weight_sum: String(distribution.weightSum), chosen_bits: bits,
      chosen_logprob_bits: logprob(bits), rank, top, ...(places.length ? { requested: places } : {}) };
  };
  if (asks.includes("raw")) out.raw = text(got.raw, raw_top);
  if (asks.includes("processed")) out.processed = text(got.processed, processed_top);
  if (asks.includes("entropy")) out.entropy = got.processed.entropy().map((x) => (typeof x === "bigint" ? String(x) : x));
  if (asks.includes("kept_tokens")) {
    out.kept_tokens = got.processed.ids.map((id, i) => [id, got.processed.bits[i]]).sort((a, b) => a[0] - b[0]);
  }
  if (asks.includes("tempered")) out.tempered = text(got.tempered, tempered_top);
  if (asks.includes("kept_log_mass")) {
    const { keptSum, tempered: { weightSum } } = got;
    out.kept_log_mass = [String(keptSum), String(weightSum), logShareBits(keptSum, weightSum)];
  }
  if (asks.includes("race_place")) {
    const [rank, lag, margin] = got.racePlace;
    out.race_place = [rank, String(lag), bitsOf(margin)];
  }
  if (got.state) out.sampler_state = String(got.state);
  if (got.dynamic) out.temperature = got.dynamic;
  return out;
}

// True if the answer to a published row is the published one.
const holds = (row) => JSON.stringify(publishedAnswer(row)) === JSON.stringify(row.answer);
