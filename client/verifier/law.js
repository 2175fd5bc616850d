// The law of sampling (kernels/law/LAW.md) in plain JavaScript. Logits are f32 bits as unsigned numbers, distances are
// Q6.26 octaves, weights are numbers of scale 2^44, sums and logarithms are BigInt. verifier.html holds this text.
"use strict";

const MASKED = 0xff800000, DEAD = 0xffffffff, LEAST = 0x21800000, LIMIT = 0x477fe000, NAN_ABOVE = 0x7f800000;
const TAGS = { group: 0x47, token: 0x54, rejection: 0x52, watermark: 0x57, xtc: 0x58 };
const UNIT_TEMPERATURE = [0x5c551d95, 0, 132], UNIT_LOG = 44n << 32n, WORD = 0xffffffff;
const EXPONENTIALS = Array.from({ length: 32 }, (_, j) => Math.round(2 ** (31 - j / 32)));
const INVERSES = Array.from({ length: 32 }, (_, j) => Math.round(65536 / (1 + (j + 0.5) / 32)));
const LOGS = INVERSES.map((inverse) => BigInt(Math.round(-Math.log2(inverse / 65536) * 2 ** 32)));
const INVERSES_WIDE = INVERSES.map(BigInt);
const G = [1549082005n, -774540997n, 516360664n, -387354473n, 309888377n];
const Q = [0xb8aa3b29n, 0x5c551da6n, 0x3d8e06fcn, 0x2e2ded3fn, 0x24887f68n, 0x2446efacn];
const LN2_33 = 0.6931471805599453 / 2 ** 32, LN2 = 0.6931471805599453;

const floatView = new Float32Array(1), bitsView = new Uint32Array(floatView.buffer);
const floatOf = (bits) => { bitsView[0] = bits; return floatView[0]; };
const bitsOf = (value) => { floatView[0] = value; return bitsView[0]; };
const magnitude = (bits) => bits & 0x7fffffff;
const flush = (bits) => (magnitude(bits) < LEAST ? 0 : bits);
const rounded = (value) => floatOf(flush(bitsOf(value)));
const floorDivide = (a, b) => (a % b !== 0n && (a < 0n) !== (b < 0n) ? a / b - 1n : a / b);
const bitLength = (x) => (x === 0n ? 0 : x.toString(2).length);
const low64 = (x) => BigInt.asUintN(64, x);

class RowFailure extends Error {
  constructor(kind, token) { super(`${kind} at token ${token}`); this.kind = kind; this.token = token; }
}

function widen(elements, dtype) {
  if (dtype === "f32") return Uint32Array.from(elements);
  return Uint32Array.from(elements, (element) => {
    if (dtype === "bf16") return (element << 16) >>> 0;
    const sign = ((element & 0x8000) << 16) >>> 0, exponent = (element >> 10) & 31, mantissa = element & 0x3ff;
    if (exponent === 31) return (sign | 0x7f800000 | (mantissa << 13)) >>> 0;
    if (exponent !== 0) return (sign | ((exponent + 112) << 23) | (mantissa << 13)) >>> 0;
    return (sign | bitsOf(mantissa * 2 ** -24)) >>> 0;
  });
}

function canonical(bits) {
  const size = magnitude(bits);
  return size > NAN_ABOVE || (bits >>> 31 && size >= LIMIT) ? MASKED : flush(bits);
}

function sortKey(bits) {
  if (bits === MASKED) return 0;
  return (bits >>> 31 ? ~bits : bits | 0x80000000) >>> 0;
}

// The upper word of a product; `b` is below 2^32.
function mulhi(a, b) {
  const low = (a & 0xffff) * b, high = (a >>> 16) * b;
  return Math.floor((high + Math.floor(low / 65536)) / 65536);
}

class Scale {
  constructor(first, [multiplier, exponent, window]) {
    this.e0 = Math.max((first >>> 23) & 255, window) + 1;
    this.shift = 161 - this.e0 - exponent;
    this.multiplier = multiplier;
    this.first = this.fixed(first);
  }
  fixed(bits) {
    const drop = Math.min(Math.max(this.e0 - ((bits >>> 23) & 255), 0), 31);
    const size = (((bits << 7) & 0x3fffffff) | 0x40000000) >>> drop;
    return bits >>> 31 ? -size : size;
  }
  beyond(bits) { return ((bits >>> 23) & 255) > this.e0; }
  below(bits) { return (this.first - this.fixed(bits)) >>> 0; }
  distance(bits) {
    if (this.beyond(bits)) return DEAD;
    const d = this.below(bits), low = d * (this.multiplier & 0xffff);
    const high = d * (this.multiplier >>> 16) + Math.floor(low / 65536);
    const p = this.shift >= 16 ? Math.floor(high / 2 ** (this.shift - 16))
      : high * 2 ** (16 - this.shift) + Math.floor((low % 65536) / 2 ** this.shift);
    return p >= 0xfc000000 ? DEAD : p;
  }
}

// A * h of LAW.md in units of 2^16, and the 16 bits below.
function weightParts(t) {
  const z = (t << 11) >>> 0, q = 5814314 - Math.floor(((z >>> 16) * 62296) / 65536);
  const h = 2 ** 28 - mulhi(z, q), a = EXPONENTIALS[(t >>> 21) & 31];
  const low = (a & 0xffff) * h;
  return [Math.floor(a / 65536) * h + Math.floor(low / 65536), low % 65536];
}

function weight(t) {
  const octaves = t >>> 26;
  if (octaves >= 45) return 0;
  const [high, low] = weightParts(t);
  return octaves === 0 ? high * 2 + Math.floor(low / 32768) : Math.floor(high / 2 ** (octaves - 1));
}

// m(t) of CHAIN.md.
function moment(t) {
  if (t >>> 26 >= 45) return 0n;
  return (BigInt(Math.floor(weightParts(t)[0] / 4096)) * BigInt(t)) >> BigInt((t >>> 26) + 15);
}

// An exact sum of numbers below 2^45.
function total(values) {
  let sum = 0n, part = 0;
  for (const value of values) {
    part += value;
    if (part >= 2 ** 51) { sum += BigInt(part); part = 0; }
  }
  return sum + BigInt(part);
}

function log2Raw(value) {
  const top = BigInt(bitLength(value) - 1);
  const f = ((value << (63n - top)) & 0x7fffffffffffffffn) >> 31n, j = Number(f >> 27n);
  const z = ((4294967296n + f) * INVERSES_WIDE[j] - 281474976710656n) >> 12n;
  let h = G[4];
  for (let k = 3; k >= 0; --k) h = G[k] + ((z * h) >> 36n);
  return (top << 32n) + LOGS[j] + ((z * h) >> 34n);
}

function logOfSum(sum) {
  const log = log2Raw(sum) - UNIT_LOG;
  return log < 0n ? 0 : Number(log >> 6n);
}

function threshold(sum, units) {
  const least = (sum * BigInt(units) + 0xffffffffn) >> 32n;
  return least > 1n ? least : 1n;
}

// --- noise

function philox(pair, position, stream, tag, [low, high]) {
  let x = pair, y = position, z = stream, w = tag;
  for (let round = 0; round < 10; ++round) {
    const a = mulhi(x, 0xd2511f53), b = Math.imul(x, 0xd2511f53), c = mulhi(z, 0xcd9e8d57), d = Math.imul(z, 0xcd9e8d57);
    [x, y, z, w] = [(c ^ y ^ low) >>> 0, d >>> 0, (a ^ w ^ high) >>> 0, b >>> 0];
    low = (low + 0x9e3779b9) >>> 0;
    high = (high + 0xbb67ae85) >>> 0;
  }
  return [x, y, z, w];
}

function noiseWord(index, tag, { key, position, stream }) {
  const words = philox(index >>> 1, position, stream, tag, key), odd = (index & 1) * 2;
  return (BigInt(words[odd + 1]) << 32n) | BigInt(words[odd]);
}

function negLog2(word) {
  const r = (word & ~63n) | 32n;
  if (r >= 1n << 60n) return ((64n << 32n) - log2Raw((1n << 64n) - r)) << 26n;
  const u = r >> 32n;
  let h = Q[5];
  for (let k = 4; k >= 0; --k) h = Q[k] + ((u * h) >> 32n);
  const value = (u * h + (((r & 0xffffffffn) * h) >> 32n)) >> 5n;
  return value > 1n ? value : 1n;
}

// The token of the smallest start + L; ties go to the lower id. `starts` holds BigInts by index, null for no runner.
// A group's least L is its owner's, so a token whose start and its group's least L lose is left out.
function race(ids, starts, noise) {
  const groups = new Map();
  let best = null, token = -1;
  for (let i = 0; i < ids.length; ++i) {
    if (starts[i] === null) continue;
    const id = ids[i], number = id >>> 6;
    if (!groups.has(number)) {
      const word = noiseWord(number, TAGS.group, noise), a = negLog2(word);
      groups.set(number, { owner: Number(word & 63n), a, least: log2Raw(a) - (64n << 32n) });
    }
    const group = groups.get(number);
    let key = starts[i] + group.least;
    if (best !== null && key > best) continue;
    if ((id & 63) !== group.owner) {
      const own = negLog2(noiseWord(id, TAGS.token, noise));
      key = starts[i] + log2Raw(((group.a + 63n) >> 6n) + own) - (58n << 32n);
    }
    if (best === null || key < best || (key === best && id < token)) [best, token] = [key, id];
  }
  return token;
}

// The key of one token in the race.
function raceKey(id, start, noise) {
  const word = noiseWord(id >>> 6, TAGS.group, noise), a = negLog2(word);
  if ((id & 63) === Number(word & 63n)) return start + log2Raw(a) - (64n << 32n);
  return start + log2Raw(((a + 63n) >> 6n) + negLog2(noiseWord(id, TAGS.token, noise))) - (58n << 32n);
}

// --- chains (kernels/law/CHAIN.md)

const carriesState = (number) => number >= 14 && number <= 16;
// Filters whose fourth operand is a number of tokens to keep; those of them that keep the first tokens.
const LEAST_KEEPERS = new Set([1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17]);
const FIRST_KEEPERS = new Set([1, 3, 5, 6, 7, 8, 9, 10, 17]);
const within = (bound) => Math.min(0xfbffffff, Math.max(0, bound));
const towardZero = (product, shift) => (product < 0n ? -(-product >> shift) : product >> shift);

// Multiplier, exponent and window of a dynamic temperature, Q8.24.
function dynamicScale(temperature) {
  const up = Math.clz32(temperature), quotient = 0x5c551d94ae0bf85dn / (BigInt(temperature) << BigInt(up));
  const carry = quotient >> 31n, window = 127 + bitLength(0xaeac4f98n * BigInt(temperature)) - 1 - 50;
  return [Number(quotient >> carry), up - 8 + Number(carry), window];
}

class Kept {
  constructor(ids, bits, vocabulary, noise, state) {
    Object.assign(this, { ids, bits, vocabulary, noise, state, temperature: UNIT_TEMPERATURE, shown: 1, dynamic: 0 });
    this.adapted = null;
    this.measure();
  }
  measure() {
    const scale = new Scale(this.bits[0], this.temperature);
    this.t = this.bits.map((bits) => scale.distance(bits));
  }
  slice(first, last) {
    for (const name of ["ids", "bits", "t"]) this[name] = this[name].slice(first, last);
    if (first !== 0) this.measure();
  }
  count(is) {
    let n = 0;
    while (n < this.t.length && is(this.t[n], n)) ++n;
    return n;
  }
  keepWithin(bound) {
    const most = within(bound);
    this.slice(0, this.count((t) => t <= most));
  }
  run([number, ...operands]) {
    const before = [this.ids, this.bits, this.t], least = operands[3] || 0;
    this[number](...operands);
    if (!FIRST_KEEPERS.has(number) || this.t.length >= least) return;
    [this.ids, this.bits, this.t] = before;
    this.slice(0, least);
  }
  weights() { return Array.from(this.t, weight); }
  sum() { return total(this.weights()); }
  mean(sum) {
    const drop = BigInt(bitLength(sum) - 32);
    let moments = 0n;
    for (const t of this.t) moments += moment(t);
    return Number(((moments << 28n) >> drop) / (sum >> drop));
  }
  entropy(sum) { return logOfSum(sum) + this.mean(sum); }

  0(multiplier, exponent, window, bits) {
    [this.temperature, this.shown] = [[multiplier, exponent | 0, window], floatOf(bits)];
    this.measure();
  }
  1(bound) { this.keepWithin(bound); }
  2(count) { this.slice(0, count); }
  3(units) {
    const w = this.weights(), least = threshold(total(w), units);
    let sum = 0n, n = 0;
    while (sum < least) sum += BigInt(w[n++]);
    this.slice(0, n);
  }
  4(units, second, third, fewest) {
    const w = this.weights(), sum = total(w), least = threshold(sum, units), mean = this.mean(sum);
    const off = this.t.map((t) => Math.abs(t - mean)), live = [...off.keys()].filter((i) => this.t[i] !== DEAD);
    const nearest = live.slice().sort((a, b) => off[a] - off[b] || a - b);
    let reached = 0n, n = 0;
    while (reached < least) reached += BigInt(w[nearest[n++]]);
    n = Math.max(n, Math.min(fewest, live.length));
    const kept = live.filter((i) => off[i] <= off[nearest[n - 1]]);
    this.slice(kept[0], kept[kept.length - 1] + 1);
  }
  5(logN) {
    const unit = new Scale(this.bits[0], UNIT_TEMPERATURE), count = BigInt(this.t.length);
    let first = 0n, second = 0n;
    for (const bits of this.bits) {
      const exact = floatOf(bits) * 2 ** (147 - unit.e0);
      const floor = Math.floor(exact), rest = exact - floor;
      const level = BigInt(Math.max(floor + (rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? 1 : 0), -(2 ** 21)));
      first += level;
      second += level * level;
    }
    const size = first < 0n ? -first : first, mean = size / count, rest = size % count;
    const variance = second - 2n * mean * size + count * mean * mean - (rest * rest) / count;
    let bound = 0;
    if (variance !== 0n) {
      const log = ((log2Raw(variance) - log2Raw(count)) >> 1n) + (BigInt(logN | 0) << 6n) + (10n << 32n);
      bound = log < 0n ? 0 : log >= 32n << 32n ? WORD : weight(Number((UNIT_LOG - log) >> 6n));
    }
    this.slice(0, this.count((_, i) => (unit.beyond(this.bits[i]) ? 0xc0000000 : unit.below(this.bits[i])) <= bound));
  }
  6(distance) { this.keepWithin(distance - logOfSum(this.sum())); }
  7(distance) {
    const sum = this.sum();
    this.keepWithin(Math.max(distance, Math.floor(distance / 2) + this.entropy(sum)) - logOfSum(sum));
  }
  8(distance) { this.keepWithin(distance + logOfSum(this.sum())); }
  9(share) {
    const head = Array.from(this.t.slice(0, 100)), log = BigInt(logOfSum(total(head.map(weight))));
    const terms = head.map((t) => moment(t) + (((BigInt(weight(t)) >> 13n) * log) >> 15n));
    const most = (terms.reduce((a, b) => a + b) * BigInt(share)) >> 31n;
    let sum = terms[0], n = 1;
    while (n < terms.length && sum + terms[n] <= most) sum += terms[n++];
    this.slice(0, n);
  }
  10() {
    const w = this.weights();
    const squares = w.reduce((sum, x) => sum + (((BigInt(x) >> 13n) * (BigInt(x) >> 13n)) >> 20n), 0n);
    this.keepWithin(Number((log2Raw(total(w)) - log2Raw(squares) - (2n << 32n)) >> 6n));
  }
  11(chance, distance, third, least) {
    const { key, position, stream } = this.noise;
    if (philox(0, position, stream, TAGS.xtc, key)[0] > chance) return;
    const bound = within(distance - logOfSum(this.sum()));
    const dropped = this.count((t) => t <= bound) - 1;
    if (this.t.length - dropped >= least) this.slice(dropped, this.t.length);
  }
  12(low, width, exponent) {
    let temperature = 1 << 24;
    if (this.t.length > 1) {
      const entropy = this.entropy(this.sum());
      let share = 0;
      if (entropy !== 0) {
        const log = log2Raw(log2Raw(BigInt(this.t.length)) >> 6n) - log2Raw(BigInt(entropy));
        const octaves = log < 0n || entropy === 1 ? 0n : (log * BigInt(exponent)) >> 34n;
        share = octaves > BigInt(WORD) ? 0 : weight(Number(octaves));
      }
      temperature = Math.max(167773, low + Number((BigInt(Math.floor(share / 8192)) * BigInt(width)) >> 31n));
    }
    [this.temperature, this.shown, this.dynamic] = [dynamicScale(temperature), temperature * 2 ** -24, temperature];
    this.measure();
  }
  13(square, cube) {
    const [multiplier, exponent] = this.temperature;
    const unit = multiplier === UNIT_TEMPERATURE[0] && exponent === UNIT_TEMPERATURE[1];
    const inverse = unit ? 1 : Math.fround(Math.fround(multiplier) * 2 ** (exponent - 30) * floatOf(0x3f317218));
    const first = floatOf(this.bits[0]), f = floatOf(square), c = floatOf(cube);
    this.bits = this.bits.map((bits) => {
      const a = rounded(rounded(first - floatOf(bits)) * inverse);
      const result = rounded(rounded(a * a) * rounded(f + rounded(c * a)));
      return result === 0 ? 0 : bitsOf(-result);
    });
    [this.temperature, this.shown] = [UNIT_TEMPERATURE, 1];
    this.measure();
  }
  14(tau, eta, most) { this.slice(0, this.mirostatCount(most)); }
  mirostatCount(most) {
    const t = Array.from(this.t.slice(0, most)).filter((x) => x !== DEAD).map(BigInt), v = BigInt(this.vocabulary);
    if (t.length === 1) return 1;
    let above = 0n, below = 0n;
    for (let i = 0; i + 1 < t.length; ++i) {
      const r = (log2Raw(BigInt(i + 2)) - log2Raw(BigInt(i + 1))) >> 1n;
      above += (r * (t[i + 1] - t[i])) >> 20n;
      below += (r * r) >> 25n;
    }
    const s = (above << 19n) / (below >> 7n), unit = 1n << 26n, e = s < unit ? unit - s : s - unit;
    const logV = log2Raw(v) >> 6n, x = (e * logV) >> 26n, falls = s < unit;
    let log = BigInt.asIntN(64, this.state << 6n);
    if (x < 1n << 20n) {
      log += 2271034279n - (log2Raw(logV) - (26n << 32n)) + (falls ? -(x << 5n) : x << 5n);
    } else {
      const rest = BigInt(2 ** 44 - weight(Number(x > BigInt(WORD) ? BigInt(WORD) : x)));
      log += log2Raw(e) - (26n << 32n) - (log2Raw(rest) - UNIT_LOG) - (falls ? x << 6n : 0n);
    }
    if (log <= 0n) return 1;
    if (s === 0n || log >= 1n << 43n) return this.vocabulary;
    const y = (log << 20n) / s;
    if (y >= 20n << 26n) return this.vocabulary;
    return Math.min(this.vocabulary, Math.max(1, weight(Number((44n << 26n) - y))));
  }
  15() { this.keepWithin(Number(BigInt.asIntN(64, this.state - BigInt(logOfSum(this.sum()))))); }
  16(target) {
    const w = this.weights(), sum = total(w), up = BigInt(64 - bitLength(sum)), word = BigInt(WORD);
    const least = (a, b) => (a < b ? a : b);
    const reciprocal = least(word, (1n << 63n) / ((sum << up) >> 32n));
    this.probabilities = w.map((x) => least(word, (((BigInt(x) << up) >> 32n) * reciprocal) >> 31n));
    const wanted = 2n * BigInt(target) - this.state, goal = wanted < 0n ? 0n : least(word, wanted);
    this.adapted = this.t.map((t, i) => {
      const p = this.probabilities[i], g = p < goal ? goal - p : p - goal;
      const quotient = (g * g) / ((g >> 1n) + 0x26666666n);
      return t === DEAD ? DEAD : Number(((quotient * 0xc05bfda0n) >> 32n) >> 1n);
    });
    this.shown = 1;
  }
  17(tau) {
    const unit = new Scale(this.bits[0], UNIT_TEMPERATURE);
    const depth = Array.from(this.bits.slice(0, 256), (bits) => (unit.beyond(bits) ? 0xc0000000 : unit.below(bits)));
    if (depth.length === 1) return;
    let cliff = 0, steepest = -1, range = depth[depth.length - 1];
    for (let i = 1; i < depth.length; ++i) {
      const decay = Math.floor(((depth[i] - depth[i - 1]) * 2 ** 17) / i);
      if (decay > steepest) [cliff, steepest] = [i, decay];
    }
    const byRange = range === 0 ? 256 : Math.floor(Math.floor(tau / 2 ** (unit.e0 - 133)) / range);
    this.slice(0, Math.max(cliff, Math.min(256, byRange)));
  }
  drawn() { return this.adapted || this.t; }
  shownBits() {
    if (!this.adapted) return [this.bits, this.bits[0]];
    return [this.adapted.map((t) => (t === DEAD ? MASKED : flush(bitsOf(-(t * (LN2 / 2 ** 26)))))), 0];
  }
  nextState([number, first, second], place) {
    if (place < 0) return this.state;
    if (number === 16) {
      const p = this.probabilities[place];
      return low64(p + towardZero((this.state - p) * BigInt(second), 32n));
    }
    const surprise = BigInt(this.t[place] + logOfSum(this.sum()) - first);
    return low64(BigInt.asIntN(64, this.state) - towardZero(surprise * BigInt(second), 30n));
  }
}
