// Records of receipts (docs/receipts.md): reading a file of any size, and what its bytes say. Uses law.js.
"use strict";

const MOST_BODY = 2 ** 24, PART = 2 ** 20;
const NUMBER = "number", FLOAT = "float", BOOL = "bool", TEXT = "text";
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const ascii = (text) => new TextEncoder().encode(text);

class BadRecord extends Error {
  constructor(problem, why) { super(why); this.problem = problem; }
}

function need(truth, why) {
  if (!truth) throw new BadRecord("bad_record", why);
}

function joined(...parts) {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  parts.reduce((at, part) => { all.set(part, at); return at + part.length; }, 0);
  return all;
}

const digest = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

// Gives a blob's bytes in order and holds about a megabyte of them.
class Reader {
  constructor(blob) { Object.assign(this, { blob, at: 0, held: new Uint8Array(0) }); }
  async take(count) {
    if (this.held.length < count) {
      const end = this.at + Math.max(count - this.held.length, PART);
      this.held = joined(this.held, new Uint8Array(await this.blob.slice(this.at, end).arrayBuffer()));
      this.at = end;
    }
    const taken = this.held.subarray(0, count);
    this.held = this.held.subarray(taken.length);
    return taken;
  }
}

// Yields type and body of each record. Throws BadRecord where no further one can be read.
async function* recordsOf(blob) {
  const reader = new Reader(blob);
  for (;;) {
    const head = await reader.take(5);
    if (head.length === 0) return;
    if (head.length < 5) throw new BadRecord("cut_record", "the file ends within a record's head");
    const length = new DataView(head.buffer, head.byteOffset).getUint32(1, true);
    need(length <= MOST_BODY, `a body of ${length} bytes, at most ${MOST_BODY}`);
    const body = await reader.take(length);
    if (body.length < length) throw new BadRecord("cut_record", "the file ends within a record");
    yield [head[0], body];
  }
}

// Reads the fields of a body one after the other.
class Fields {
  constructor(body) {
    Object.assign(this, { body, at: 0, view: new DataView(body.buffer, body.byteOffset, body.length) });
  }
  bytes(count) {
    need(this.at + count <= this.body.length, "a record that is too short");
    this.at += count;
    return this.body.slice(this.at - count, this.at);
  }
  word() {
    need(this.at + 4 <= this.body.length, "a record that is too short");
    this.at += 4;
    return this.view.getUint32(this.at - 4, true);
  }
  wide() {
    const low = this.word();
    return (BigInt(this.word()) << 32n) | BigInt(low);
  }
  words(count) {
    need(this.at + 4 * count <= this.body.length, "a record that is too short");
    return Array.from({ length: count }, () => this.word());
  }
  end() { need(this.at === this.body.length, "a record that is too long"); }
}

// The law that an opening of any law names; 0 if it is no opening.
function lawOf(body) {
  if (body.length < 12 || String.fromCharCode(...body.slice(0, 8)) !== "sortrcp1") return 0;
  return new Fields(body.slice(8, 12)).word();
}

function openingOf(body) {
  const from = new Fields(body), opening = {};
  from.bytes(12);
  for (const name of ["vocabulary", "live", "choice", "flags"]) opening[name] = from.word();
  from.bytes(16);
  opening.commitment = hex(from.bytes(32));
  from.bytes(from.word());
  opening.words = from.words(from.word());
  from.end();
  need((opening.flags & ~1) === 0, `flags ${opening.flags} of an opening`);
  return opening;
}

async function receiptOf(body) {
  const from = new Fields(body), receipt = { chain: hex(from.bytes(16)), previous: hex(from.bytes(32)) };
  for (const name of ["index", "stepId", "historyHash"]) receipt[name] = from.wide();
  const words = ["position", "offset", "flags", "method", "salt", "temperature", "token", "logprob", "keptCount"];
  for (const name of words) receipt[name] = from.word();
  need((receipt.flags & ~15) === 0, `flags ${receipt.flags} of a receipt`);
  need(receipt.method >= 1 && receipt.method <= 4, `method ${receipt.method}`);
  need(receipt.keptCount >= 1, "a receipt without kept tokens");
  receipt.listed = (receipt.flags & 2) !== 0;
  const pairs = from.words(receipt.listed ? 2 * receipt.keptCount : 0);
  if (receipt.flags & 4) receipt.mask = hex(from.bytes(32));
  receipt.phase = receipt.flags & 8 ? from.word() : 0;
  need(receipt.phase !== 0 || !(receipt.flags & 8), "phase 0 of a receipt");
  from.end();
  receipt.ids = pairs.filter((_, i) => i % 2 === 0);
  receipt.bits = pairs.filter((_, i) => i % 2 === 1);
  need(receipt.ids.every((id, i) => i === 0 || receipt.ids[i - 1] < id), "kept tokens that do not ascend");
  return Object.assign(receipt, { digest: hex(await digest(body)) });
}

// The words of a packed mask that say which live tokens it allows, and their digest; undefined if it is too short.
async function liveMask(bytes, live) {
  const count = Math.ceil(live / 32);
  if (bytes.length < 4 * count) return undefined;
  const words = new Fields(bytes).words(count);
  if (live % 32) words[count - 1] = (words[count - 1] & ((1 << (live % 32)) - 1)) >>> 0;
  const cut = new Uint8Array(4 * count), view = new DataView(cut.buffer);
  words.forEach((word, i) => view.setUint32(4 * i, word, true));
  return [hex(await digest(joined(ascii("sortition mask 1"), cut))), words];
}

function signatureOf(body) {
  const from = new Fields(body), signature = { key: from.bytes(32), time: from.wide(), heads: [] };
  const count = from.word();
  need(count >= 1, "a signature without heads");
  need(body.length === 44 + 60 * count + 64, "a signature of another length than its heads");
  for (let i = 0; i < count; ++i) {
    const head = { chain: hex(from.bytes(16)), count: from.wide(), head: hex(from.bytes(32)), flags: from.word() };
    need((head.flags & ~1) === 0, "flags of a head");
    signature.heads.push(head);
  }
  signature.signed = joined(ascii("sortition receipts 1"), body.slice(0, -64));
  signature.signature = from.bytes(64);
  return signature;
}

// --- the parameters of an opening. By number: the field's name and kind. A list of one kind is a repeated field,
// a set an enumeration.

const PRESET_NAMES = new Set(["PRESET_UNSPECIFIED", "PRESET_VLLM", "PRESET_LLAMA_CPP", "PRESET_HF"]);
const NAN_POLICIES = new Set(["NAN_POLICY_UNSPECIFIED", "NAN_POLICY_FAIL", "NAN_POLICY_MASK"]);
const SEQUENCE = { 1: ["tokens", [NUMBER]] };
const FIELDS = {
  1: ["temperature", FLOAT], 2: ["top_k", NUMBER], 3: ["top_p", FLOAT], 4: ["min_p", FLOAT],
  5: ["repetition_penalty", FLOAT], 6: ["frequency_penalty", FLOAT], 7: ["presence_penalty", FLOAT],
  8: ["penalty_scope", { 1: ["window", NUMBER], 2: ["repetition_counts_prompt", BOOL],
    3: ["frequency_counts_prompt", BOOL], 4: ["ignored_prefix", NUMBER] }],
  9: ["logit_bias", [{ 1: ["token", NUMBER], 2: ["bias", FLOAT] }]], 10: ["allowed_token_ids", [NUMBER]],
  11: ["banned_token_ids", [NUMBER]], 12: ["nan_policy", NAN_POLICIES],
  18: ["chain", { 1: ["preset", PRESET_NAMES], 2: ["explicit", { 1: ["samplers", [TEXT]] }] }],
  20: ["typical_p", FLOAT], 21: ["top_n_sigma", FLOAT], 22: ["epsilon_cutoff", FLOAT], 23: ["eta_cutoff", FLOAT],
  24: ["top_a", FLOAT], 25: ["top_h", FLOAT], 26: ["p_less", BOOL],
  27: ["xtc", { 1: ["probability", FLOAT], 2: ["threshold", FLOAT] }],
  28: ["dynamic_temperature", { 1: ["range", FLOAT], 2: ["exponent", FLOAT] }],
  29: ["mirostat", { 1: ["version", NUMBER], 2: ["tau", FLOAT], 3: ["eta", FLOAT], 4: ["m", NUMBER] }],
  30: ["adaptive_p", { 1: ["target", FLOAT], 2: ["decay", FLOAT] }],
  31: ["quadratic_smoothing", { 1: ["factor", FLOAT], 2: ["curve", FLOAT] }],
  32: ["dry", { 1: ["multiplier", FLOAT], 2: ["base", FLOAT], 3: ["allowed_length", NUMBER], 4: ["window", NUMBER],
    5: ["sequence_breakers", [SEQUENCE]] }],
  33: ["no_repeat_ngram_size", NUMBER], 34: ["min_tokens", NUMBER], 35: ["stop_token_ids", [NUMBER]],
  36: ["bad_words", [SEQUENCE]],
  44: ["repetition_stop", { 1: ["repeats", NUMBER], 2: ["min_period", NUMBER], 3: ["max_period", NUMBER],
    4: ["min_length", NUMBER], 5: ["min_tokens", NUMBER] }],
  45: ["banned_phrases", [SEQUENCE]],
  50: ["min_k", { 1: ["tau", FLOAT] }], 51: ["min_keep", NUMBER],
};
// The fields that a phase may replace.
const WITHIN = Object.fromEntries([1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 50, 51]
  .map((number) => [number, FIELDS[number]]));
FIELDS[37] = ["phases", [{ 1: ["begin", [NUMBER]], 2: ["end", [NUMBER]], 3: ["max_tokens", NUMBER],
  4: ["then", [NUMBER]], 5: ["parameters", WITHIN] }]];

// The parameters with the contract's names. Throws BadRecord for words that are none.
function parametersOf(words, fields = FIELDS) {
  const found = {};
  for (let at = 0, last = 0; at < words.length;) {
    const [number, size] = words.slice(at, at + 2);
    need(size !== undefined && at + 2 + size <= words.length, "parameters that end within an entry");
    need(number > last, "parameters out of order");
    need(number in fields, `parameters have field ${number}, which this page does not know`);
    const [name, kind] = fields[number];
    found[name] = valueOf(kind, words.slice(at + 2, at + 2 + size));
    [at, last] = [at + 2 + size, number];
  }
  return found;
}

function valueOf(kind, words) {
  if (Array.isArray(kind)) return kind[0] === NUMBER ? words : itemsOf(kind[0], words);
  if (typeof kind === "object" && !(kind instanceof Set)) return parametersOf(words, kind);
  need(words.length === 1, "a number of several words");
  if (kind instanceof Set) need(words[0] < kind.size, "a value that is none of its enumeration");
  if (kind instanceof Set) return [...kind][words[0]];
  return kind === FLOAT ? floatOf(words[0]) : kind === BOOL ? words[0] !== 0 : words[0];
}

function itemsOf(kind, words) {
  const items = [];
  for (let at = 0; at < words.length;) {
    const size = words[at], count = kind === TEXT ? Math.ceil(size / 4) : size;
    need(at + 1 + count <= words.length, "parameters that end within an item");
    const part = words.slice(at + 1, at + 1 + count);
    const text = () => String.fromCharCode(...part.flatMap((word) => [0, 8, 16, 24].map((n) => (word >>> n) & 255)));
    items.push(kind === TEXT ? text().slice(0, size) : parametersOf(part, kind));
    at += 1 + count;
  }
  return items;
}
