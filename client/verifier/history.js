// Options that look at a history (kernels/law/LAW.md, section 2, and WATERMARK.md): a row's edits and noise. Parameters
// are SamplingParameters with the contract's names. Uses law.js and options.js.
"use strict";

const PRESETS = { PRESET_UNSPECIFIED: "vllm", PRESET_VLLM: "vllm", PRESET_LLAMA_CPP: "llama_cpp", PRESET_HF: "hf" };
const MASKS_ANY = 131008; // a penalty that masks every live logit
const single = (value) => Math.fround(value);
const presetOf = (parameters) => PRESETS[(parameters.chain || {}).preset || "PRESET_UNSPECIFIED"];

// The edits of the row after `tokens`, of which the first `prompt` are the prompt, by token: [token, flags, bias bits,
// penalty bits].
function editsOf(parameters, tokens, prompt) {
  const bias = new Map((parameters.logit_bias || []).map((item) => [item.token || 0, flush(bitsOf(item.bias || 0))]));
  const banned = bansOf(parameters, tokens, prompt), { repeated, counts } = countedOf(parameters, tokens, prompt);
  const terms = (parameters.dry || {}).multiplier ? dryTerms(parameters.dry, tokens) : new Map();
  const named = [...new Set([...bias.keys(), ...banned, ...repeated, ...counts.keys(), ...terms.keys()])];
  return named.sort((a, b) => a - b).map((token) => [token, (banned.has(token) ? 1 : 0) | (repeated.has(token) ? 2 : 0),
    bias.get(token) || 0, penaltyOf(parameters, counts.get(token) || 0, terms.get(token) || 0)])
    .filter(([, ...parts]) => parts.some((part) => part !== 0));
}

const thenOf = ({ then = [], end }) => (then.length ? then : end);

function endsWith(tokens, tag) {
  return tag.length > 0 && tag.length <= tokens.length && sameTokens(tokens.slice(tokens.length - tag.length), tag);
}

// The phase in which the token after `tokens` is drawn, 1 for the first one and 0 outside; and the token that is forced
// there, undefined if there is none.
function phaseAfter({ phases = [] }, tokens, prompt) {
  const begins = phases.map(({ begin = [] }) => begin), atOutput = begins.findIndex((begin) => begin.length === 0) + 1;
  let now = 0, since = 0;
  for (let n = 0; n <= tokens.length && phases.length; ++n) {
    const read = tokens.slice(since, n), { end = [], max_tokens: budget = Infinity } = now ? phases[now - 1] : {};
    if (now) {
      const over = read.length > budget ? read.length === budget + thenOf(phases[now - 1]).length : endsWith(read, end);
      if (over) [now, since] = [0, n];
    } else {
      const found = begins.findIndex((begin) => endsWith(read, begin)) + 1;
      if (found) [now, since] = [found, n];
    }
    if (!now && n === prompt && atOutput) [now, since] = [atOutput, n];
  }
  const { max_tokens: budget = Infinity } = now ? phases[now - 1] : {}, used = tokens.length - since;
  return { phase: now, forced: now && used >= budget ? thenOf(phases[now - 1])[used - budget] : undefined };
}

// The parameters that hold in a phase: 1 for the first one, 0 outside of all.
function parametersWithin({ phases = [], ...outer }, phase) {
  const inner = Object.entries((phase ? phases[phase - 1].parameters : undefined) || {});
  return { ...outer, ...Object.fromEntries(inner.filter(([, value]) => !Array.isArray(value) || value.length)) };
}

// The noise of a row with a watermark; null without one.
function watermarkNoise({ watermark }, tokens, stream) {
  if (!watermark) return null;
  const width = watermark.context_width || 4, key = keyOf(watermark.key);
  let hash = [0, 0];
  for (const token of tokens.slice(Math.max(0, tokens.length - width))) {
    hash = philox(hash[0], hash[1], token, TAGS.watermark, key).slice(0, 2);
  }
  return { key: hash, position: 0, stream };
}

const sameTokens = (a, b) => a.length === b.length && a.every((token, i) => token === b[i]);

function bansOf(parameters, tokens, prompt) {
  const output = tokens.slice(prompt), size = parameters.no_repeat_ngram_size;
  const found = new Set(parameters.banned_token_ids);
  if (size && tokens.length >= size - 1) {
    const end = tokens.slice(tokens.length - size + 1);
    for (let i = 0; i + size <= tokens.length; ++i) {
      if (sameTokens(tokens.slice(i, i + size - 1), end)) found.add(tokens[i + size - 1]);
    }
  }
  const text = presetOf(parameters) === "hf" ? tokens : output;
  for (const { tokens: word } of parameters.bad_words || []) {
    const begin = word.slice(0, -1);
    if (begin.length <= text.length && sameTokens(text.slice(text.length - begin.length), begin)) {
      found.add(word[word.length - 1]);
    }
  }
  if (output.length < (parameters.min_tokens || 0)) {
    for (const token of parameters.stop_token_ids || []) found.add(token);
  }
  return found;
}

// The tokens of the repetition penalty, and the others' counts.
function countedOf(parameters, tokens, prompt) {
  const scope = parameters.penalty_scope || {}, asLlamaCpp = presetOf(parameters) === "llama_cpp";
  const either = (value, otherwise) => (value === undefined ? otherwise : value);
  const window = either(scope.window, asLlamaCpp ? 64 : 0), inPrompt = either(scope.repetition_counts_prompt, true);
  const counted = either(scope.frequency_counts_prompt, asLlamaCpp), ignored = scope.ignored_prefix || 0;
  const repeats = single(either(parameters.repetition_penalty, 1)) !== 1;
  const counting = parameters.frequency_penalty || parameters.presence_penalty;
  const counts = new Map(), repeated = new Set();
  for (let i = window ? Math.max(0, tokens.length - window) : 0; i < tokens.length; ++i) {
    if (i < prompt && i < ignored) continue;
    if (repeats && (i >= prompt || inPrompt)) repeated.add(tokens[i]);
    if (counting && (i >= prompt || counted)) counts.set(tokens[i], (counts.get(tokens[i]) || 0) + 1);
  }
  return { repeated, counts };
}

// The bits of -(frequency * count + presence + dry).
function penaltyOf(parameters, count, dry) {
  const frequency = single(parameters.frequency_penalty || 0), presence = single(parameters.presence_penalty || 0);
  return flush(bitsOf(-((count ? frequency * count + presence : 0) + dry)));
}

// DRY: the term of each token that would continue a repetition.
function dryTerms(dry, tokens) {
  const window = dry.window || 0, least = dry.allowed_length || 2;
  const h = window ? tokens.slice(Math.max(0, tokens.length - window)) : tokens;
  const breakers = (dry.sequence_breakers || []).map((item) => item.tokens), longest = new Map();
  const alone = new Set(breakers.filter((breaker) => breaker.length === 1).map(([token]) => token));
  const limit = afterBreaker(breakers, h);
  for (let i = 1; i < h.length; ++i) {
    let length = 0;
    while (length < Math.min(i, limit) && h[i - 1 - length] === h[h.length - 1 - length]) ++length;
    if (length >= least && !alone.has(h[i])) longest.set(h[i], Math.max(longest.get(h[i]) || 0, length));
  }
  const base = single(dry.base === undefined ? 1.75 : dry.base), table = [single(dry.multiplier)];
  while (base !== 1 && table[table.length - 1] < MASKS_ANY) table.push(table[table.length - 1] * base);
  return new Map([...longest].map(([token, length]) => [token, table[Math.min(length - least, table.length - 1)]]));
}

function afterBreaker(breakers, h) {
  for (let i = h.length - 1; i >= 0; --i) {
    const standing = breakers.filter((breaker) => sameTokens(h.slice(i, i + breaker.length), breaker));
    if (standing.length) return h.length - i - Math.max(...standing.map((breaker) => breaker.length));
  }
  return h.length;
}

// --- published histories (docs/law-1.md)

// True if the row's edits, allowed tokens, noise and options follow from its history, and its answer from them.
function historyHolds({ history: { parameters: all, prompt, output, stream }, row }) {
  const tokens = [...prompt, ...output], { phase, forced } = phaseAfter(all, tokens, prompt.length);
  const parameters = parametersWithin(all, phase);
  const allowed = forced === undefined ? (parameters.allowed_token_ids || []).slice().sort((a, b) => a - b) : [forced];
  const edits = forced === undefined ? editsOf(parameters, tokens, prompt.length) : [];
  const plain = { key: keyOf(row.noise.seed), position: tokens.length, stream }, { noise: wanted } = publishedRow(row);
  const noise = watermarkNoise(parameters, tokens, stream) || plain;
  const compiled = compileParameters(parameters), asked = publishedRow(row).compiled;
  const names = ["greedy", "multiplier", "exponent", "window", "min_p_distance", "top_k", "top_p", "repetition",
    "inverse_repetition"];
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  return same(edits, row.patches || []) && same(allowed, row.allowed_tokens || [])
    && same([noise.key, noise.position, noise.stream], [wanted.key, wanted.position, wanted.stream])
    && names.every((name) => compiled[name] === asked[name]) && same(compiled.chain, asked.chain || [])
    && String(firstState(compiled.chain)) === (row.sampler_state || "0") && holds(row);
}
