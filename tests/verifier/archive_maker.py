"""Makes archives of texts (docs/verifier.md) one position after the other: tokens by the law of one row, blocks by the
model of the contract. Signs with a test's key.

`files(settings)` are an archive's files, `packed(files)` the archive.
"""

import gzip
import hashlib
import io
import json
import pathlib
import struct
import sys
import tarfile

import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "client/verify"), str(SOURCE / "tests/model")]

import drafts  # noqa: E402
import receipt_maker as maker  # noqa: E402
import sortition_verify as law  # noqa: E402
from sortition_verify import receipts, records  # noqa: E402
from sortition_verify.functions import weights  # noqa: E402
from sortition_verify.history import edits, phase_after, watermark_noise  # noqa: E402
from sortition_verify.parameters import compile_parameters, within  # noqa: E402
from sortition_verify.row import kept_of, raw_logits  # noqa: E402

SETTINGS = SOURCE / "client/archive/settings.json"
SEED = 0x70726F6F66000000
PROBABILITIES = [int(law.float_bits(q)) for q in (0.5, 0.25, 0.125, 0.125)]
WORD, IDS = 0xFFFFFFFF, np.arange(1024, dtype=np.uint64)


def mix(x):
    """Mixes an integer, or an array of integers that have 64 bits."""
    x ^= x >> 16
    x = x * 0x85EBCA6B & WORD
    x ^= x >> 13
    x = x * 0xC2B2AE35 & WORD
    return x ^ x >> 16


def surprises(key):
    """64ths of octaves, of all tokens."""
    x = mix(key + IDS * 0x9E3779B9 & WORD)
    return 9664 - ((x >> 8 | 1).astype(np.float32).view(np.uint32).astype(np.int64) >> 17)


class Text:
    """One text of a setting, that is drawn token by token."""

    def __init__(self, model, setting, number, length):
        self.seed_of_model, self.setting, self.number, self.length = model["seed"], setting, number, length
        key = mix(self.seed_of_model ^ number ^ WORD)
        self.prompt = [mix(key + j & WORD) & 1023 for j in range(setting["prompt"])]
        self.tokens, self.words, self.rows, self.receipts = list(self.prompt), [], hashlib.sha256(), []
        self.state = 0

    def place_key(self, position):
        return mix(self.seed_of_model ^ (1 << 31 | self.number << 16 | position))

    def surprises(self, tokens):
        return surprises(mix(self.seed_of_model ^ ((tokens[-1] & 127 | (tokens[-2] & 3) << 7) + 1)))

    def sent(self, tokens):
        """The row after tokens, as bytes."""
        logits = (4 * self.surprises(tokens) + 2 * surprises(self.place_key(len(tokens))) - 2048) / 256
        bits = logits.astype(np.float32).view(np.uint32)
        return bits.tobytes() if self.setting.get("dtype") != "bf16" else (bits >> 16).astype("<u2").tobytes()

    def row(self, tokens):
        """The row of the law after tokens, and its phase."""
        phase, forced = phase_after(self.setting["parameters"], tokens, len(self.prompt))
        parameters = within(self.setting["parameters"], phase)
        dtype = self.setting.get("dtype", "f32")
        bits = law.widen(np.frombuffer(self.sent(tokens), "<u2" if dtype == "bf16" else "<u4"), dtype)
        allowed = None if forced is None else [forced]
        if "mask" in self.setting:
            mask = self.setting["mask"]
            allowed = [t for t in range(1024) if (t + len(tokens)) % mask["period"] >= mask["hidden"]]
        seed, position = SEED + self.number, len(tokens)
        mark = watermark_noise(parameters, tokens)
        if mark is not None:
            (low, high), position, _ = mark
            seed = high << 32 | low
        row = law.Row(bits=bits, compiled=compile_parameters(parameters)[0], seed=seed, position=position,
                      edits=edits(parameters, tokens, len(self.prompt)) if forced is None else [],
                      allowed_tokens=allowed, state=self.state or law.first_state(
                          compile_parameters(parameters)[0].chain))
        return row, phase

    def draft(self, tokens):
        """A chain's draft after tokens, and the drafter's tokens in their order."""
        parts = self.surprises(tokens)
        likely = sorted(range(1024), key=lambda i: (-parts[i], i))[:4]
        v = mix(self.place_key(len(tokens)) + 1024 & WORD) & 7
        return likely[0 if v < 4 else 1 if v < 6 else v - 4], likely

    def commit(self, token, method):
        row, phase = self.row(self.tokens)
        row.score = token
        got, sent = law.answer(row), self.sent(self.tokens)
        self.rows.update(sent)
        kept = got.processed
        logprob = kept.logprob_bits(kept.bits_and_rank(token)[0])
        words = [token, logprob, struct.unpack("<I", hashlib.sha256(sent).digest()[:4])[0]]
        if "raw_logprobs" in self.setting["parameters"]:
            bits, rank = got.raw.bits_and_rank(token)
            words += [got.raw.logprob_bits(bits), rank]
            for first in got.raw.ids[:3]:
                words += [int(first), got.raw.logprob_bits(got.raw.bits_and_rank(int(first))[0])]
            words += [kept.entropy()[2], len(kept.ids)]
        self.words.append(words)
        pairs = sorted((int(i), int(b)) for i, b in zip(kept.ids, kept.bits))
        self.receipts.append((len(self.tokens), token, logprob, pairs, method, phase))
        self.state = got.state
        self.tokens.append(int(token))

    def draw(self):
        """Draws the whole text."""
        rule = self.setting.get("drafts", {})
        step = {"VERIFY_MODE_REJECTION": self.step_by_rejection, "VERIFY_MODE_BLOCK": self.step_by_block}.get(
            rule.get("mode"))
        while len(self.words) < self.length:
            if step and self.length - len(self.words) > len(rule["parents"]):
                step(len(rule["parents"]))
            else:
                self.commit(law.answer(self.row(self.tokens)[0]).token, records.RACE)
        return self

    def step_by_rejection(self, depth):
        for _ in range(depth):
            row, _ = self.row(self.tokens)
            draft, likely = self.draft(self.tokens)
            pairs = sorted(zip(likely, PROBABILITIES))
            row.verify = draft
            row.draft = law.Draft(certain=False, tokens=[token for token, _ in pairs], bits=[bits for _, bits in pairs])
            got = law.answer(row)
            self.commit(got.token, records.ACCEPTED if got.accepted else records.REPLACED)
            if not got.accepted:
                return
        self.commit(law.answer(self.row(self.tokens)[0]).token, records.RACE)

    def step_by_block(self, depth):
        tokens, drafted, ahead = list(self.tokens), [], []
        for _ in range(depth):
            draft, likely = self.draft(tokens)
            drafted.append(drafts.Drafted(zip(likely, PROBABILITIES)))
            ahead.append(draft)
            tokens.append(draft)
        accepted, after = drafts.block(lambda i: Reached(self.row(tokens[:len(self.tokens) + i])[0]), ahead, drafted)
        for token in ahead[:accepted]:
            self.commit(token, records.RACE)
        self.commit(law.answer(self.row(self.tokens)[0]).token if after is None else after, records.RACE)


class Reached:
    """A position of a block, as tests/model/drafts.py asks for it."""

    def __init__(self, row):
        self.row, self.greedy = row, False
        self.ids, self.distances, _ = kept_of(row, raw_logits(row)).row()

    def weights(self):
        return weights(self.distances)


class Chain:
    """The receipts of a text."""

    def __init__(self, text):
        parameters = text.setting["parameters"]
        words = maker.words_of(parameters)
        salt = hashlib.sha256(f"sortition proof salt {text.number}".encode()).digest()[:16]
        nonce = hashlib.sha256(f"sortition proof nonce {text.number}".encode()).digest()[:16]
        self.line = f"{SEED + text.number} {salt.hex()}"
        opening = records.OPENING_HEAD.pack(records.MAGIC, 1, 1024, 1024, 0, int("watermark" in parameters), nonce,
                                            receipts.seed_commitment(SEED + text.number, salt))
        name = f"text {text.number}".encode()
        opening += struct.pack("<I", len(name)) + name + struct.pack(f"<{len(words) + 1}I", len(words), *words)
        self.head, self.count, self.text = maker.sha(opening), 0, text
        self.id, self.records = self.head[:16], [maker.record(records.OPENING, opening)]
        for receipt in text.receipts:
            self.add(*receipt)

    def add(self, position, token, logprob, pairs, method, phase):
        mask, digest = self.text.setting.get("mask"), b""
        if mask:
            shown = np.array([(t + position) % mask["period"] >= mask["hidden"] for t in range(1024)])
            digest = records.mask_digest(np.packbits(shown, bitorder="little").view("<u4"))
        body = records.RECEIPT_HEAD.pack(self.id, self.head, self.count, self.count + 1, 0, position, 0,
                                         2 | (4 if mask else 0) | (8 if phase else 0), method, 0, 0, token, logprob,
                                         len(pairs))
        body += b"".join(struct.pack("<II", *pair) for pair in pairs) + digest
        body += struct.pack("<I", phase) if phase else b""
        self.head, self.count = maker.sha(body), self.count + 1
        self.records.append(maker.record(records.RECEIPT, body))

    def state(self, ended=1):
        return self.id, self.count, self.head, ended


def settings(texts, tokens):
    """This release's settings, of which each has a few short texts."""
    found = json.loads(SETTINGS.read_text(encoding="utf-8"))
    found["tokens"] = tokens
    for setting in found["settings"]:
        setting["texts"] = texts
        setting["prompt"] = min(setting["prompt"], 64)
    return json.dumps(found).encode()


def files(text, key=maker.KEY):
    """The files by name, in their order, of an archive of the settings that `text` has."""
    settings_of, drawn = json.loads(text), []
    for setting in settings_of["settings"]:
        drawn += [Text(settings_of["model"], setting, len(drawn) + at, settings_of["tokens"]).draw()
                  for at in range(setting["texts"])]
    chains = [Chain(text) for text in drawn]
    signed = [chain for chain in chains
              if chain.text.setting.get("drafts", {}).get("mode") != "VERIFY_MODE_BLOCK"]
    texts = b"sortprf1" + struct.pack("<2I", len(drawn), settings_of["tokens"]) + maker.sha(text)
    for one in drawn:
        texts += one.rows.digest() + b"".join(struct.pack(f"<{len(words)}I", *words) for words in one.words)
    machine = {"format": settings_of["format"], "law_version": "1", "made": "2026-11-28T12:00:00Z", "by": "a test",
               "release": "0.1.0", "build": "", "processor": "", "system": "", "device": "numpy", "hardware": "",
               "transport": "none", "public_key": maker.public_key(key).hex()}
    return manifested({
        "machine.json": json.dumps(machine).encode(), "settings.json": text,
        "vectors.json": json.dumps({"golden_outputs.json": {"rows": 113, "answered": 113, "different": []}}).encode(),
        "texts.bin": texts, "seeds.txt": "".join(f"{chain.line}\n" for chain in chains).encode(),
        "receipts.bin": columns([one for chain in signed for one in chain.records]),
        "signature.bin": maker.signature(key, *signed, ended=1)})


def columns(records_):
    """receipts.bin of records, all of which stand in columns that can."""
    forms, whole, masks, pairs = [], b"", b"", []
    longs, words = ([], []), tuple([] for _ in range(10))
    chain, previous, index = b"", b"", 0
    for record in records_:
        kind, body = record[0], record[5:]
        if kind == records.RECEIPT and body[:56] == chain + previous + struct.pack("<Q", index):
            forms.append(0)
            fields = struct.unpack_from("<2Q9I", body, 56)
            for column, field in zip(longs + words, fields):
                column.append(field)
            end = 108 + 8 * fields[10] * (fields[4] >> 1 & 1)
            pairs += list(struct.iter_unpack("<2I", body[108:end]))
            masks += body[end:end + 32] if fields[4] & 4 else b""
            words[9].append(struct.unpack("<I", body[-4:])[0] if fields[4] & 8 else 0)
            previous, index = maker.sha(body), index + 1
            continue
        forms.append(1)
        whole += record
        if kind == records.OPENING:
            previous, index = maker.sha(body), 0
            chain = previous[:16]

    def planes(size, column):
        numbers = [number.to_bytes(size, "little") for number in column]
        return b"".join(bytes(number[at] for number in numbers) for at in range(size))

    return (b"sortcol1" + struct.pack("<2I", len(forms), forms.count(0)) + bytes(forms)
            + b"".join(planes(8, column) for column in longs) + b"".join(planes(4, column) for column in words)
            + masks + planes(4, [token for token, _ in pairs]) + planes(4, [bits for _, bits in pairs]) + whole)


def manifested(contents):
    """Files with their manifest before them."""
    contents = {name: content for name, content in contents.items() if name != "proof.json"}
    listed = {name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
              for name, content in contents.items()}
    manifest = {"format": "sortition proof 1", "id": listed.get("machine.json", {}).get("sha256"), "files": listed}
    return {"proof.json": json.dumps(manifest).encode(), **contents}


def packed(contents):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(archive.getvalue(), mtime=0)
