// Checks of receipts (docs/receipts.md). Uses law.js, row.js, options.js, history.js and records.js. SHA-256 and
// Ed25519 are the browser's.
"use strict";

const NESTED = {
  xtc: { probability: "xtc_probability", threshold: "xtc_threshold" },
  dynamic_temperature: { range: "dynamic_temperature_range", exponent: "dynamic_temperature_exponent" },
  mirostat: { version: "mirostat", tau: "mirostat_tau", eta: "mirostat_eta", m: "mirostat_m" },
  adaptive_p: { target: "adaptive_target", decay: "adaptive_decay" },
  quadratic_smoothing: { factor: "smoothing_factor", curve: "smoothing_curve" },
  min_k: { tau: "min_k_tau" },
};
// Parameters for which a row needs the tokens before it.
const LOOK_BACK = ["repetition_penalty", "frequency_penalty", "presence_penalty", "dry", "no_repeat_ngram_size",
  "min_tokens", "bad_words", "phases"];

// The options of compileOptions.
function samplerOptions(parameters) {
  const options = {};
  for (const [name, value] of Object.entries(parameters)) {
    if (name in NESTED) for (const part of Object.keys(value)) options[NESTED[name][part]] = value[part];
    else if (name in DEFAULTS) options[name] = value;
  }
  for (const name of ["adaptive_p", "min_k"]) if (name in parameters) options[name] = true;
  return options;
}

function compileParameters(parameters) {
  const chain = parameters.chain || {}, listed = (chain.explicit || {}).samplers || [];
  const order = listed.map((name) => (name === "dynamic_temperature" ? "temperature" : name));
  return compileOptions(samplerOptions(parameters), order.length ? order : presetOf(parameters));
}

// Least and largest value, and one outside of them that is off; a fourth entry excludes the least value.
const RANGES = {
  temperature: [0.01, 100, 0], top_p: [0, 1, 1, true], min_p: [0, 1, 0], repetition_penalty: [0.01, 100, 1],
  frequency_penalty: [-100, 100, 0], presence_penalty: [-100, 100, 0], typical_p: [0, 1, 1, true],
  top_n_sigma: [0.01, 100, 0], epsilon_cutoff: [0, 1, 0], eta_cutoff: [0, 1, 0], top_a: [0, 1, 0], top_h: [0, 1, 0],
  xtc_probability: [0, 1, 0], xtc_threshold: [0, 1, 1, true], dynamic_temperature_range: [0, 100, 0],
  dynamic_temperature_exponent: [0.01, 10, 1], smoothing_factor: [0, 100, 0], smoothing_curve: [1, 3, 1],
  mirostat: [0, 2, 0], mirostat_tau: [0, 20, 5, true], mirostat_eta: [0, 1, 1, true], mirostat_m: [2, 1000, 2],
  adaptive_target: [0, 1, 0], adaptive_decay: [0, 0.99, 0], min_k_tau: [0, 100, 0], min_keep: [0, 1000, 0],
  "dry.multiplier": [0.01, 100, 0],
  "dry.base": [1.01, 100, 1], "dry.allowed_length": [1, 1024, 1], bias: [-65503.996, 65503.996, 0],
};

// Throws for a value that no server of this law takes.
function checkRanges(parameters, vocabulary) {
  const named = [...Object.entries(parameters), ...Object.entries(samplerOptions(parameters)),
    ...Object.entries(parameters.dry || {}).map(([name, value]) => [`dry.${name}`, value]),
    ...(parameters.logit_bias || []).map(({ bias = 0 }) => ["bias", bias])];
  for (const [name, value] of named) {
    if (!(name in RANGES) || typeof value !== "number") continue;
    const [least, most, off] = RANGES[name].map((bound) => Math.fround(bound)), open = RANGES[name].length > 3;
    need((value >= least && value <= most && !(open && value === least)) || value === off, `${name}: ${value}`);
  }
  const options = { ...DEFAULTS, ...samplerOptions(parameters) };
  const chosen = ["typical_p", "xtc", "mirostat", "adaptive_p"].some((name) => isOn(options, name));
  need(options.temperature !== 0 || !(chosen || options.dynamic_temperature_range !== 0), "temperature: 0");
  const lists = ["allowed_token_ids", "banned_token_ids", "stop_token_ids"].flatMap((name) => parameters[name] || []);
  const phases = parameters.phases || [];
  const tagged = phases.flatMap(({ begin = [], end = [], then = [] }) => [...begin, ...end, ...then]);
  const emits = ({ max_tokens: budget, then = [], end = [] }) => budget === undefined || then.length || end.length;
  need(phases.every(emits), "a phase with a budget and nothing to emit after it");
  phases.forEach((_, i) => checkRanges(parametersWithin(parameters, i + 1), vocabulary));
  const tokens = [...lists, ...tagged, ...(parameters.logit_bias || []).map(({ token = 0 }) => token)];
  need(tokens.every((token) => token < vocabulary), "a token that is not in the vocabulary");
}

// Why no row has these kept tokens, or this one of them; empty if one may.
function impossibility({ opening, compiled: all }, { ids, bits, token, temperature, method, keptCount, phase }) {
  const compiled = all[phase];
  if (!compiled) return "a phase that the parameters do not have";
  const first = bits.reduce((a, b) => (sortKey(b) > sortKey(a) ? b : a)), noLogit = (b) => ((b >>> 23) & 255) === 255;
  const dynamic = compiled.chain.some(([number]) => number === 12);
  if (token >= opening.live || ids[ids.length - 1] >= opening.live) return "a token that is not in the live vocabulary";
  if (bits.some((b) => noLogit(b) && b !== MASKED) || magnitude(first) >= LIMIT) {
    return "a kept token's bits are those of no logit";
  }
  if (dynamic ? temperature < 167773 || temperature > 200 * 2 ** 24 : temperature !== 0) {
    return `a dynamic temperature of ${temperature}`;
  }
  if (compiled.greedy !== (method === 2) || (compiled.greedy && keptCount !== 1)) {
    return "the method is not that of the temperature";
  }
  return ids.includes(token) ? "" : `${token} is not among the kept tokens`;
}

// The processed distribution that a receipt's kept tokens are, if that is possible.
function keptDistribution(compiled, receipt) {
  const order = receipt.ids.map((_, i) => i);
  order.sort((a, b) => sortKey(receipt.bits[b]) - sortKey(receipt.bits[a]) || a - b);
  const ids = order.map((i) => receipt.ids[i]), bits = order.map((i) => receipt.bits[i]);
  const [scale, shown] = shownTemperature(compiled.greedy ? [] : stagesOf(compiled), receipt.temperature);
  const unit = new Scale(bits[0], scale);
  return new Distribution(ids, bits, bits[0], bits.map((b) => unit.distance(b)), shown);
}

class ReceiptCheck {
  // `keys`: trusted public keys in hexadecimal, none: all. `seeds`: lines "SEED SALT". `rows`: a Map from position to
  // f32 bits. `prompt`: its tokens, or undefined. `tolerance`: nats, or undefined. `masks`: packed ones of steps, as
  // lines of hexadecimal bytes.
  constructor({ keys = [], seeds = [], rows = new Map(), prompt, tolerance, masks = [] } = {}) {
    const isHex = (line) => /^([0-9a-f]{2})+$/i.test(line), wrong = masks.find((line) => !isHex(line));
    if (wrong !== undefined) throw new Error(`a mask is packed bits in hexadecimal, not ${wrong.slice(0, 40)}`);
    Object.assign(this, { keys: new Set(keys), seeds, rows, prompt, tolerance });
    this.masks = masks.map((line) => Uint8Array.from(line.match(/../g), (byte) => parseInt(byte, 16)));
    Object.assign(this, { chains: new Map(), commitments: new Map() });
    Object.assign(this, { receipts: 0, signed: 0, drawn: 0, compared: 0, begunBefore: 0, problems: [] });
    Object.assign(this, { notDrawn: new Map(), notCompared: new Map(), unopened: new Map(), noSignatures: false });
  }

  problem(problem, why, chain, index, line) {
    const place = { problem, why };
    if (chain !== undefined) place.chain = chain;
    if (index !== undefined) place.index = Number(index);
    if (line !== undefined) place.line = line;
    this.problems.push(place);
  }

  // Reads a whole file, record by record.
  async read(blob) {
    for (const line of this.seeds.map((text) => text.trim()).filter((text) => text && text[0] !== "#")) {
      const parts = /^(\d+) +([0-9a-f]{32})$/i.exec(line);
      this.unopened.set(line, "its seed and salt open no commitment of the file");
      if (!parts || BigInt(parts[1]) >= 1n << 64n) continue;
      const seed = new Uint8Array(8), salt = Uint8Array.from(parts[2].match(/../g), (byte) => parseInt(byte, 16));
      new DataView(seed.buffer).setBigUint64(0, BigInt(parts[1]), true);
      const commitment = hex(await digest(joined(ascii("sortition seed 1"), salt, seed)));
      this.commitments.set(commitment, [BigInt(parts[1]), line]);
    }
    const caught = (error) => {
      if (!(error instanceof BadRecord)) throw error;
      this.problem(error.problem, error.message);
    };
    try {
      for await (const [kind, body] of recordsOf(blob)) {
        try {
          await this.take(kind, body);
        } catch (error) {
          caught(error);
        }
      }
    } catch (error) {
      caught(error);
    }
    for (const [line, why] of this.unopened) this.problem("wrong_seed", why, undefined, undefined, line);
    return this;
  }

  async take(kind, body) {
    if (kind === 1) return this.readMasks(this.open(hex(await digest(body)), body));
    if (kind === 3) return this.sign(signatureOf(body));
    need(kind === 2, `type ${kind}`);
    this.receipts += 1;
    return this.receive(await receiptOf(body));
  }

  // --- check 1

  open(head, body) {
    const id = head.slice(0, 32), law = lawOf(body);
    if (this.chains.has(id)) return undefined;
    const chain = { head, count: 0n, begun: false, fits: true, waiting: 0, tokens: new Map(), masks: new Map() };
    chain.unknown = "of another law";
    this.chains.set(id, chain);
    if (law !== 1) this.problem("unknown_law", `law ${law}`, id);
    try {
      chain.opening = openingOf(body);
      const found = this.commitments.get(chain.opening.commitment);
      if (found) {
        chain.seed = found[0];
        this.unopened.delete(found[1]);
      }
      if (law === 1) this.compile(chain);
    } catch (error) {
      chain.unknown = "with parameters that are none";
      if (law === 1) this.problem("bad_record", error.message, id);
    }
    return chain;
  }

  async readMasks(chain) {
    if (!chain || !chain.compiled) return;
    for (const bytes of this.masks) {
      const mask = await liveMask(bytes, chain.opening.live);
      if (mask) chain.masks.set(...mask);
    }
  }

  compile(chain) {
    const { vocabulary, live, choice, words } = chain.opening;
    need(live >= 1 && live <= vocabulary && vocabulary < 2 ** 20 && choice <= 65535, "no server takes this vocabulary");
    const parameters = parametersOf(words);
    checkRanges(parameters, live);
    const phases = [undefined, ...(parameters.phases || [])];
    chain.parameters = parameters;
    chain.compiled = phases.map((_, i) => compileParameters(parametersWithin(parameters, i)));
  }

  receive(receipt) {
    const chain = this.chains.get(receipt.chain);
    if (!chain) return this.problem("unknown_chain", "no opening before it", receipt.chain, receipt.index);
    if (!chain.begun && receipt.index !== 0n) {
      this.begunBefore += 1;
    } else if (receipt.index !== chain.count || receipt.previous !== chain.head) {
      this.problem("broken_chain", `after receipt ${chain.count - 1n} of the chain`, receipt.chain, receipt.index);
      // A receipt on either side may be changed, so no later signature vouches for those before.
      [chain.fits, chain.waiting] = [false, 0];
    }
    Object.assign(chain, { begun: true, count: receipt.index + 1n, head: receipt.digest });
    if (chain.fits) chain.waiting += 1;
    if (this.rows.size) chain.tokens.set(receipt.position, receipt.token);
    const count = (map, reason) => reason && map.set(reason, (map.get(reason) || 0) + 1);
    count(this.notDrawn, this.drawAgain(chain, receipt));
    count(this.notCompared, this.compareRow(chain, receipt));
  }

  async sign({ key, heads, signed, signature }) {
    let valid = false;
    try {
      const imported = await crypto.subtle.importKey("raw", key, "Ed25519", false, ["verify"]);
      valid = await crypto.subtle.verify("Ed25519", imported, signature, signed);
    } catch (error) {
      if (error.name === "NotSupportedError") this.noSignatures = true;
    }
    if (!valid && !this.noSignatures) this.problem("wrong_signature", `not of the key ${hex(key)}`);
    if (this.keys.size && !this.keys.has(hex(key))) {
      this.problem("unknown_key", `signed by ${hex(key)}`);
      valid = false;
    }
    for (const { chain: id, count, head } of heads) {
      const chain = this.chains.get(id);
      if (!chain) {
        this.problem("unknown_chain", "a signature names it", id);
      } else if (count !== chain.count || head !== chain.head) {
        this.problem("wrong_head", `not the state of the chain, of ${chain.count} receipts`, id, count);
      } else if (valid) {
        this.signed += chain.waiting;
        chain.waiting = 0;
      }
    }
  }

  // --- check 2. Returns the reason if the draw could not be checked.

  drawAgain(chain, receipt) {
    const wrong = (name, why) => this.problem(name, why, receipt.chain, receipt.index);
    if (!chain.compiled) return chain.unknown;
    if (!receipt.listed) return "without a list of their kept tokens";
    const impossible = impossibility(chain, receipt);
    if (impossible) return void wrong("wrong_token", impossible);
    const { token, method } = receipt, adaptive = "adaptive_p" in chain.parameters;
    const kept = keptDistribution(chain.compiled[receipt.phase], receipt);
    const logprob = kept.logprobBits(kept.bitsAndRank(token)[0]);
    let drawn = token, reason;
    if (adaptive) reason = "with adaptive_p";
    else if (method > 2) reason = "decided by a draft's probabilities";
    else if (method === 1 && chain.opening.flags & 1) reason = "with a watermark";
    else if (method === 1 && chain.seed === undefined) reason = "without the seed";
    else if (method === 1) drawn = race(kept.ids, startsOf(kept.distances), this.noise(chain, receipt));
    if (drawn !== token) return void wrong("wrong_token", `${token} is recorded, ${drawn} is drawn`);
    if (!adaptive && logprob !== receipt.logprob) {
      return void wrong("wrong_logprob", `0x${logprob.toString(16)} follows from the kept tokens`);
    }
    if (!reason) this.drawn += 1;
    return reason;
  }

  noise(chain, { position, salt }) {
    return { key: keyOf(chain.seed || 0n), position, stream: (chain.opening.choice | (salt << 16)) >>> 0 };
  }

  // --- check 3. Returns the reason if the row could not be compared.

  compareRow(chain, receipt) {
    const { compiled, opening } = chain, draws = receipt.method <= 2;
    const bits = this.rows.get(receipt.position);
    const last = compiled && compiled[0].chain[compiled[0].chain.length - 1];
    const greedy = compiled && compiled.every((options) => options.greedy);
    if (!bits) return "without logits";
    if (!compiled) return chain.unknown;
    if (last && carriesState(last[0])) return "whose sampler keeps a state";
    if (draws && !greedy && opening.flags & 1) return "with a watermark";
    if (chain.seed === undefined && !greedy) {
      return this.tolerance === undefined ? "without the seed" : "whose margin needs the seed";
    }
    const short = bits.length < opening.live ? `${bits.length} logits, the vocabulary has more` : "";
    if (receipt.mask && !chain.masks.has(receipt.mask) && !short) return "whose step's mask was not given";
    const tokens = short ? [] : this.history(chain, receipt);
    if (tokens === null) return "without the tokens before them";
    if (this.tolerance !== undefined && !draws && !short) return "decided by a draft's probabilities";
    const difference = short || this.rowDifference(chain, receipt, bits.slice(0, opening.live), draws, tokens);
    if (difference) return void this.problem("wrong_row", difference, receipt.chain, receipt.index);
    this.compared += 1;
  }

  // The tokens before the receipt's; null if they are needed and not known.
  history(chain, receipt) {
    if (!LOOK_BACK.some((name) => name in chain.parameters)) return [];
    if (this.prompt === undefined) return null;
    const tokens = [...this.prompt];
    while (tokens.length < receipt.position) {
      if (!chain.tokens.has(tokens.length)) return null;
      tokens.push(chain.tokens.get(tokens.length));
    }
    return tokens;
  }

  rowDifference(chain, receipt, bits, draws, tokens) {
    const noise = this.noise(chain, receipt), prompt = tokens.length ? this.prompt.length : 0;
    const { phase, forced } = phaseAfter(chain.parameters, tokens, prompt);
    if (phase !== receipt.phase) return `phase ${receipt.phase} is recorded, the history gives ${phase}`;
    const parameters = parametersWithin(chain.parameters, phase), compiled = chain.compiled[phase];
    const row = { bits, compiled, noise, state: 0n, maskNan: parameters.nan_policy === "NAN_POLICY_MASK",
      edits: forced === undefined ? editsOf(parameters, tokens, prompt) : [],
      allowedTokens: forced === undefined ? parameters.allowed_token_ids : [forced],
      allowedBits: forced === undefined ? chain.masks.get(receipt.mask) : undefined };
    let got;
    try {
      got = answerOf(draws ? row : { ...row, score: receipt.token });
    } catch (error) {
      return `the logits fail: ${error.message}`;
    }
    const kept = got.processed;
    if (this.tolerance !== undefined) {
      const [, , far] = racePlace(kept.ids, kept.distances, noise, receipt.token);
      return far <= this.tolerance ? "" : `the token lost by ${far.toPrecision(3)} nats, ${this.tolerance} allowed`;
    }
    if (kept.ids.length !== receipt.keptCount) {
      return `the logits keep ${kept.ids.length} tokens, ${receipt.keptCount} are recorded`;
    }
    const pairs = new Map(kept.ids.map((id, i) => [id, kept.bits[i]]));
    if (receipt.listed && !receipt.ids.every((id, i) => pairs.get(id) === receipt.bits[i])) {
      return "the logits keep other tokens, or other bits of them";
    }
    if (got.token !== receipt.token) return `the logits give token ${got.token}, ${receipt.token} is recorded`;
    const logprob = kept.logprobBits(kept.bitsAndRank(receipt.token)[0]);
    return logprob === receipt.logprob ? "" : "the logits give another logprob";
  }

  // The report in words, one fact a line.
  text() {
    const reasons = (map) => {
      const found = [...map].sort().map(([why, count]) => `${count} ${why}`).join(", ");
      return found ? `; not checked: ${found}` : "";
    };
    const unsigned = this.receipts - this.signed;
    const none = "not under a valid signature of a trusted key, or after a break";
    const signatures = this.noSignatures ? ["this browser has no Ed25519: no signature was checked"] : [];
    const before = `${this.begunBefore} chains begin before the file: their first receipts were not checked`;
    return [`${this.receipts} receipts in ${this.chains.size} chains`,
      `signature and chain: ${this.signed} hold${unsigned ? `; not checked: ${unsigned} ${none}` : ""}`,
      `draw: ${this.drawn} hold${reasons(this.notDrawn)}`, `row: ${this.compared} hold${reasons(this.notCompared)}`,
      ...(this.begunBefore ? [before] : []), ...signatures,
      ...this.problems.map(({ problem, why, chain, index, line }) => `PROBLEM ${problem}`
        + (chain === undefined ? "" : ` in chain ${chain}`) + (index === undefined ? "" : ` at receipt ${index}`)
        + (line === undefined ? "" : ` of ${line}`) + `: ${why}`),
      this.problems.length ? `${this.problems.length} problems` : "no problem found"].join("\n");
  }
}
