// Options as people write them, compiled to the law's integers, and rows of numpy's .npy format. Uses law.js.
"use strict";

const ORDERS = {
  vllm: ["temperature", "quadratic_smoothing", "top_n_sigma", "min_k", "min_p", "top_k", "top_p", "typical_p",
    "epsilon_cutoff", "eta_cutoff", "top_a", "top_h", "p_less", "xtc", "mirostat", "adaptive_p"],
  llama_cpp: ["quadratic_smoothing", "top_n_sigma", "min_k", "top_k", "typical_p", "top_p", "min_p",
    "epsilon_cutoff", "eta_cutoff", "top_a", "top_h", "p_less", "xtc", "temperature", "mirostat", "adaptive_p"],
  hf: ["temperature", "quadratic_smoothing", "top_n_sigma", "min_k", "top_h", "top_k", "top_p", "min_p",
    "typical_p", "epsilon_cutoff", "eta_cutoff", "top_a", "p_less", "xtc", "mirostat", "adaptive_p"],
};
const DEFAULTS = {
  temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1, typical_p: 1, top_n_sigma: 0, epsilon_cutoff: 0,
  eta_cutoff: 0, top_a: 0, top_h: 0, p_less: false, xtc_probability: 0, xtc_threshold: 0.1,
  dynamic_temperature_range: 0, dynamic_temperature_exponent: 1, smoothing_factor: 0, smoothing_curve: 1, mirostat: 0,
  mirostat_tau: 5, mirostat_eta: 0.1, mirostat_m: 100, adaptive_p: false, adaptive_target: 0, adaptive_decay: 0.9,
  min_k: false, min_k_tau: 3, min_keep: 0,
};

// value * 2^bits rounded half to even.
function units(value, bits) {
  const exact = value * 2 ** bits, floor = Math.floor(exact), rest = exact - floor;
  return floor + (rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? 1 : 0);
}

function massUnits(p) {
  const rounded = units(p, 32);
  return rounded >= 2 ** 32 ? 0 : Math.max(1, rounded);
}

// floor(-log2(p) * 2^26), exactly, of an f32; WORD where the threshold drops nothing.
function thresholdDistance(p) {
  if (p <= 2 ** -63) return WORD;
  const bits = bitsOf(p), octaves = 127 - (bits >>> 23), mantissa = (bits & 0x7fffff) | 0x800000;
  if (mantissa === 0x800000) return octaves * 2 ** 26;
  let log = 0, x = BigInt(mantissa) << 137n;
  for (let bit = 0; bit < 26; ++bit) {
    x = (x * x) >> 160n;
    log *= 2;
    if (x >> 161n) [log, x] = [log + 1, x >> 1n];
  }
  return octaves * 2 ** 26 - log - 1;
}

// The exponent of a positive double in [1/2, 1) * 2^exponent.
function exponentOf(value) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  return ((view.getUint16(0) >>> 4) & 0x7ff) - 1022;
}

function temperatureConstants(t) {
  const c = 1.4426950408889634 / t;
  let exponent = exponentOf(c), multiplier = units(c / 2 ** exponent, 31);
  if (multiplier === 2 ** 31) [multiplier, exponent] = [2 ** 30, exponent + 1];
  return [multiplier, exponent - 1, 126 + exponentOf(43.66827237527655 * t)];
}

function isOn(p, name) {
  if (name === "temperature") return p.temperature !== 1 || p.dynamic_temperature_range !== 0;
  if (name === "quadratic_smoothing") return p.smoothing_factor !== 0;
  if (name === "top_p" || name === "typical_p") return massUnits(p[name]) !== 0;
  if (["min_p", "epsilon_cutoff", "eta_cutoff", "top_a"].includes(name)) return thresholdDistance(p[name]) !== WORD;
  if (name === "xtc") return p.xtc_probability !== 0 && p.xtc_threshold <= 0.5;
  return Boolean(p[name]);
}

function stageOf(p, name) {
  const constant = (value) => flush(bitsOf(value)), [factor, curve] = [p.smoothing_factor, p.smoothing_curve];
  switch (name) {
    case "temperature": {
      const spread = p.dynamic_temperature_range;
      if (spread === 0) {
        const [multiplier, exponent, window] = temperatureConstants(p.temperature);
        return [0, multiplier, exponent >>> 0, window, bitsOf(p.temperature)];
      }
      const low = units(Math.max(0, p.temperature - spread), 24), high = units(p.temperature + spread, 24);
      return [12, low, high - low, units(p.dynamic_temperature_exponent, 28)];
    }
    case "quadratic_smoothing": return [13, constant((factor * (3 - curve)) / 2), constant((factor * (curve - 1)) / 2)];
    case "top_n_sigma": return [5, (7 * 2 ** 26 - thresholdDistance(p[name] / 128)) >>> 0];
    case "min_p": return [1, thresholdDistance(p[name])];
    case "top_k": return [2, Math.max(p[name], p.min_keep)];
    case "top_p": return [3, massUnits(p[name])];
    case "typical_p": return [4, massUnits(p[name])];
    case "epsilon_cutoff": return [6, thresholdDistance(p[name])];
    case "eta_cutoff": return [7, thresholdDistance(p[name])];
    case "top_a": return [8, thresholdDistance(p[name])];
    case "top_h": return [9, units(p[name], 31)];
    case "p_less": return [10];
    case "xtc": return [11, (massUnits(p.xtc_probability) - 1) >>> 0, thresholdDistance(p.xtc_threshold)];
    case "mirostat": {
      const operands = [units(p.mirostat_tau, 26), units(p.mirostat_eta, 30)];
      return p[name] === 1 ? [14, ...operands, p.mirostat_m] : [15, ...operands];
    }
    case "min_k": return [17, units(p.min_k_tau, 24)];
    default: return [16, Math.min(WORD, units(p.adaptive_target, 32)), Math.min(WORD, units(p.adaptive_decay, 32))];
  }
}

// The integers of options by name, in an order of samplers: a list, or its name.
function compileOptions(options, orderName) {
  const order = Array.isArray(orderName) ? orderName : ORDERS[orderName], p = {};
  if (!order) throw new Error(`${orderName} is no order: ${Object.keys(ORDERS).join(", ")}`);
  for (const name of Object.keys(options)) if (!(name in DEFAULTS)) throw new Error(`${name} is no option of the law`);
  for (const [name, value] of Object.entries({ ...DEFAULTS, ...options })) {
    p[name] = typeof value === "number" ? Math.fround(value) : value;
  }
  const greedy = p.temperature === 0, t = greedy ? 1 : p.temperature, repeats = p.repetition_penalty !== 1;
  const stages = greedy ? [] : order.filter((name) => isOn(p, name)).map((name) => stageOf(p, name));
  const chain = stages.map((stage) => [...stage, 0, 0, 0, 0].slice(0, 5));
  const isFilter = ([number]) => LEAST_KEEPERS.has(number);
  if (p.min_keep > 1) for (const stage of chain) if (isFilter(stage)) stage[4] = p.min_keep;
  const plain = chain.every((stage, i) => stage[0] <= 3 && (i === 0 || chain[i - 1][0] <= stage[0])
    && !(isFilter(stage) && stage[4] > 1));
  const [multiplier, exponent, window] = temperatureConstants(plain ? t : 1);
  return {
    greedy, multiplier, exponent, window, temperature: plain ? t : 1,
    min_p_distance: plain ? thresholdDistance(p.min_p) : WORD, top_k: plain ? p.top_k : 0,
    top_p: plain ? massUnits(p.top_p) : 0, repetition: repeats ? bitsOf(p.repetition_penalty) : 0,
    inverse_repetition: repeats ? bitsOf(1 / p.repetition_penalty) : 0, chain: plain ? [] : chain,
  };
}

// A chain's state before its first step.
function firstState(chain) {
  const last = chain[chain.length - 1];
  return !last || !carriesState(last[0]) ? 0n : BigInt(last[1]) * (last[0] === 16 ? 1n : 2n);
}

// The f32 bits of a .npy file's only row.
function bitsOfNpy(buffer) {
  const view = new DataView(buffer), magic = String.fromCharCode(...new Uint8Array(buffer, 0, Math.min(6, buffer.byteLength)));
  if (magic !== "\x93NUMPY") throw new Error("this is no .npy file");
  const wide = view.getUint8(6) > 1, start = (wide ? 12 : 10) + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = String.fromCharCode(...new Uint8Array(buffer, 0, start));
  const type = (/'descr': '([^']*)'/.exec(header) || [])[1];
  const shape = (/'shape': \(([^)]*)\)/.exec(header) || ["", ""])[1].split(",").filter((n) => n.trim()).map(Number);
  const dtypes = { "<f4": ["f32", Uint32Array], "<f2": ["f16", Uint16Array], "<u2": ["bf16", Uint16Array] };
  if (!(type in dtypes)) throw new Error(`elements of type ${type}: float32, float16 or uint16 words of bfloat16 only`);
  const count = shape.reduce((a, b) => a * b, 1), [dtype, Words] = dtypes[type];
  if (shape.slice(0, -1).some((n) => n !== 1) || count < 1) throw new Error(`a shape of (${shape}): one row only`);
  if (count >= 2 ** 20) throw new Error(`${count} tokens: a row has fewer than ${2 ** 20}`);
  if (buffer.byteLength - start < count * Words.BYTES_PER_ELEMENT) throw new Error("the file ends within the row");
  return widen(new Words(buffer.slice(start, start + count * Words.BYTES_PER_ELEMENT)), dtype);
}
