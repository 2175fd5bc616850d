"""Makes files of receipts as a server would (docs/receipts.md), from the law in numpy. Signs with a test's key."""

import hashlib
import pathlib
import struct
import sys

import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "client/verify"))

import sortition_verify as law  # noqa: E402
from sortition_verify import ed25519, receipts, records  # noqa: E402
from sortition_verify.history import edits, phase_after  # noqa: E402
from sortition_verify.parameters import compile_parameters, within  # noqa: E402

KEY = bytes([1]) * 32
SALT = bytes(range(16))


def sha(data):
    return hashlib.sha256(data).digest()


def public_key(private):
    return ed25519.encoded(ed25519.multiplied(secret_of(private)[0], ed25519.BASE))


def secret_of(private):
    hashed = hashlib.sha512(private).digest()
    number = int.from_bytes(hashed[:32], "little")
    return number & (1 << 254) - 8 | 1 << 254, hashed[32:]


def signed(private, message):
    scalar, prefix = secret_of(private)
    nonce = int.from_bytes(hashlib.sha512(prefix + message).digest(), "little") % ed25519.ORDER
    point = ed25519.encoded(ed25519.multiplied(nonce, ed25519.BASE))
    hashed = int.from_bytes(hashlib.sha512(point + public_key(private) + message).digest(), "little")
    return point + ((nonce + hashed * scalar) % ed25519.ORDER).to_bytes(32, "little")


def record(kind, body):
    return struct.pack("<BI", kind, len(body)) + body


def words_of(parameters, fields=records.FIELDS):
    """The words of parameters, in the form of an opening."""
    words = []
    for number, (name, kind) in sorted(fields.items()):
        if name in parameters:
            part = part_of(kind, parameters[name])
            words += [number, len(part), *part]
    return words


def part_of(kind, value):
    if isinstance(kind, dict):
        return words_of(value, kind)
    if isinstance(kind, list) and kind[0] == records.NUMBER:
        return list(value)
    if isinstance(kind, list):
        items = []
        for item in value:
            if kind[0] is str:
                data = item.encode()
                items += [len(data), *struct.unpack(f"<{(len(data) + 3) // 4}I", data + bytes(-len(data) % 4))]
            else:
                part = words_of(item, kind[0])
                items += [len(part), *part]
        return items
    if kind == records.FLOAT:
        return list(struct.unpack("<I", struct.pack("<f", value)))
    return [kind.index(value) if isinstance(kind, tuple) else int(value)]


def integers_of(parameters):
    """The integers of parameters, by phase."""
    return [receipts.integers_of(compile_parameters(within(parameters, phase))[0])
            for phase in range(len(parameters.get("phases", [])) + 1)]


class Chain:
    """One chain: `records` are its opening and receipts, `rows` the logits by position."""

    def __init__(self, seed=42, vocabulary=50, parameters=None, prompt=(3, 1, 4), nonce=0, law_version=1, flags=0,
                 salt=SALT, words=None, integers=None):
        self.seed, self.vocabulary, self.parameters = seed, vocabulary, parameters or {"temperature": 0.8, "top_p": 0.9}
        self.tokens, self.prompt = list(prompt), list(prompt)
        words = words_of(self.parameters) if words is None else words
        commitment = receipts.seed_commitment(seed, salt)
        flags |= records.INTEGERS if integers else 0
        opening = records.OPENING_HEAD.pack(b"sortrcp1", law_version, vocabulary, vocabulary, 0, flags,
                                            nonce.to_bytes(16, "little"), commitment)
        opening += struct.pack("<I", 9) + b"request-1" + struct.pack(f"<{len(words) + 1}I", len(words), *words)
        if integers:
            opening += struct.pack("<I", len(integers))
            for *numbers, stages in integers:
                opening += struct.pack("<4I", *numbers, len(stages))
                opening += b"".join(struct.pack("<5I", *stage) for stage in stages)
        self.head = sha(opening)
        self.id, self.count, self.rows = self.head[:16], 0, {}
        self.records = [record(records.OPENING, opening)]

    def receipt(self, *, position, token, logprob, kept, method=1, listed=True, temperature=0, phase=0, **changes):
        """Appends a receipt. `changes` replace fields that follow from the chain."""
        fields = dict(chain=self.id, previous=self.head, index=self.count, step_id=self.count + 1,
                      flags=2 * listed | (8 if phase else 0))
        fields.update(changes)
        body = records.RECEIPT_HEAD.pack(
            fields["chain"], fields["previous"], fields["index"], fields["step_id"], 0, position, 0, fields["flags"],
            method, 0, temperature, token, logprob, fields.get("kept_count", len(kept)))
        body += b"".join(struct.pack("<II", *pair) for pair in kept if listed)
        body += struct.pack("<I", phase) if phase else b""
        self.head, self.count = sha(body), self.count + 1
        self.records.append(record(records.RECEIPT, body))
        return self

    def draw(self, count=1, **changes):
        """Appends receipts of tokens that are drawn by the law from random logits."""
        for _ in range(count):
            position = len(self.tokens)
            phase, forced = phase_after(self.parameters, self.tokens, len(self.prompt))
            parameters = within(self.parameters, phase)
            compiled, mask_nan = compile_parameters(parameters)
            logits = np.random.default_rng(self.seed * 1000 + position).standard_normal(self.vocabulary)
            self.rows[position] = law.float_bits(logits)
            row = law.Row(bits=self.rows[position], compiled=compiled, seed=self.seed, position=position,
                          mask_nan=mask_nan, allowed_tokens=None if forced is None else [forced],
                          edits=edits(parameters, self.tokens, len(self.prompt)) if forced is None else [])
            got = law.answer(row)
            kept = got.processed
            pairs = sorted((int(token), int(bits)) for token, bits in zip(kept.ids, kept.bits))
            fields = dict(position=position, token=got.token, kept=pairs, method=2 if compiled.greedy else 1,
                          logprob=kept.logprob_bits(kept.bits_and_rank(got.token)[0]),
                          temperature=got.dynamic_temperature, phase=phase)
            fields.update(changes)
            self.receipt(**fields)
            self.tokens.append(fields["token"])
        return self

    def state(self, ended=0):
        return self.id, self.count, self.head, ended

    def file(self, private=KEY):
        """The chain with one signature at its end."""
        return b"".join(self.records) + signature(private, self)


def signature(private, *chains, ended=0):
    body = public_key(private) + struct.pack("<QI", 1700000000000, len(chains))
    body += b"".join(records.HEAD.pack(*chain.state(ended)) for chain in chains)
    return record(records.SIGNATURE, body + signed(private, b"sortition receipts 1" + body))


def seed_line(chain, salt=SALT):
    return f"{chain.seed} {salt.hex()}"
