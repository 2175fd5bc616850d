"""Receipts as canonical JSON (RFC 8785, docs/receipts-elsewhere.md): a line for each record, back to its bytes."""

import json
import re
import struct
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NoReturn, Tuple

from sortition_verify import records as form
from sortition_verify.records import BadRecord

MOST_NUMBER = 2**53 - 1
MOST_LINE = 8 * form.MOST_BODY  # bytes; no record of the longest body has a longer line
Members = Dict[str, Any]


def bad(why: str, problem: str = "bad_json") -> NoReturn:
    raise BadRecord(problem, why)


def members_of(pairs: List[Tuple[str, Any]]) -> Members:
    found: Members = {}
    for name, value in pairs:
        if name in found:
            bad(f"member {name!a:.80} twice", "doubled_key")
        found[name] = value
    return found


def number_of(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MOST_NUMBER:
        bad(f"{text[:40]}: a number beyond 2^53 - 1, which readers of JSON may round", "wide_number")
    return int(text)


def canonical(value: Any) -> bytes:
    """RFC 8785 of objects whose names are ASCII, without fractions."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def value_of(line: bytes) -> Members:
    """The object of a canonical line, without its line feed."""
    try:
        value = json.loads(line.decode(), object_pairs_hook=members_of, parse_int=number_of,
                           parse_float=lambda text: bad(f"{text[:40]}: a number that is no integer"),
                           parse_constant=lambda text: bad(f"{text}: not JSON"))
        again = canonical(value)
    except (ValueError, RecursionError) as error:
        bad(f"not JSON: {error}")
    if not isinstance(value, dict):
        bad("no object")
    if again != line:
        place = next((i for i, (a, b) in enumerate(zip(again, line)) if a != b), min(len(again), len(line)))
        bad(f"byte {place} is not that of the canonical form", "not_canonical")
    return value


# --- kinds of members: each makes the bytes of a value, or raises BadRecord


def flag(value: Any) -> bool:
    return value if isinstance(value, bool) else bad(f"{value!a:.80}, not true or false")


def word(value: Any) -> bytes:
    if type(value) is not int or not 0 <= value < 1 << 32:
        bad(f"{value!a:.80}, not a number below 2^32")
    return struct.pack("<I", value)


def wide(value: Any) -> bytes:
    if not isinstance(value, str) or not re.fullmatch("0|[1-9][0-9]{0,19}", value) or int(value) >= 1 << 64:
        bad(f"{value!a:.80}, not a decimal string below 2^64")
    return struct.pack("<Q", int(value))


def hexadecimal(size: int) -> Callable[[Any], bytes]:
    def bytes_of(value: Any) -> bytes:
        if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{2 * size}}}", value):
            bad(f"{value!a:.80}, not {2 * size} hexadecimal digits")
        return bytes.fromhex(value)

    return bytes_of


def items(value: Any) -> List[Any]:
    return value if isinstance(value, list) else bad(f"{value!a:.80}, not a list")


def words(value: Any, count: int) -> bytes:
    if len(items(value)) != count:
        bad(f"a list of {len(value)}, not of {count}")
    return b"".join(map(word, value))


class Reader:
    """Members of an object: each is taken once, and none is left."""

    def __init__(self, value: Any, what: str) -> None:
        self.left, self.what = dict(value) if isinstance(value, dict) else bad(f"{what} is no object"), what

    def has(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str, kind: Callable[[Any], Any] = lambda value: value) -> Any:
        if name not in self.left:
            bad(f"{self.what} lacks {name}")
        try:
            return kind(self.left.pop(name))
        except BadRecord as error:
            bad(f"{name} of {self.what}: {error.why}")

    def end(self) -> None:
        if self.left:
            bad(f"{self.what} has no member {min(self.left)!a:.80}")


def phase_of(value: Any) -> bytes:
    taken = Reader(value, "a phase")
    body = struct.pack("<I", taken.take("greedy", flag)) + taken.take("repetition", word)
    body += taken.take("inverse_repetition", word)
    stages = taken.take("stages", items)
    taken.end()
    return body + struct.pack("<I", len(stages)) + b"".join(words(stage, 5) for stage in stages)


def integers_of(value: Any) -> bytes:
    return struct.pack("<I", len(items(value))) + b"".join(map(phase_of, value))


def opening_of(taken: Reader) -> bytes:
    has_integers = taken.has("integers")
    flags = taken.take("watermark", flag) * form.WATERMARK | has_integers * form.INTEGERS
    text = taken.take("request_id", lambda value: value if isinstance(value, str) else bad("no text")).encode()
    body = form.MAGIC + taken.take("law_version", word) + taken.take("vocabulary_size", word)
    body += taken.take("live_vocabulary_size", word) + taken.take("choice_index", word) + struct.pack("<I", flags)
    body += taken.take("nonce", hexadecimal(16)) + taken.take("commitment", hexadecimal(32))
    body += struct.pack("<I", len(text)) + text
    parameters = taken.take("parameters", items)
    body += struct.pack("<I", len(parameters)) + b"".join(map(word, parameters))
    return body + (taken.take("integers", integers_of) if has_integers else b"")


def receipt_of(taken: Reader) -> bytes:
    optional = {"history_hash": form.HISTORY, "kept": form.LISTED, "mask": form.MASKED, "phase": form.PHASED}
    flags = sum(bit for name, bit in optional.items() if taken.has(name))
    body = taken.take("chain", hexadecimal(16)) + taken.take("previous", hexadecimal(32)) + taken.take("index", wide)
    body += taken.take("step_id", wide)
    body += taken.take("history_hash", wide) if flags & form.HISTORY else bytes(8)
    body += taken.take("position", word) + taken.take("offset", word) + struct.pack("<I", flags)
    for name in ("method", "draw_salt", "temperature", "token", "logprob", "kept_count"):
        body += taken.take(name, word)
    if flags & form.LISTED:
        body += b"".join(words(pair, 2) for pair in taken.take("kept", items))
    body += taken.take("mask", hexadecimal(32)) if flags & form.MASKED else b""
    return body + (taken.take("phase", word) if flags & form.PHASED else b"")


def head_of(value: Any) -> bytes:
    taken = Reader(value, "a head")
    body = taken.take("chain", hexadecimal(16)) + taken.take("receipts", wide) + taken.take("head", hexadecimal(32))
    body += struct.pack("<I", taken.take("ended", flag))
    taken.end()
    return body


def signature_of(taken: Reader) -> bytes:
    heads = taken.take("heads", items)
    body = taken.take("public_key", hexadecimal(32)) + taken.take("time", wide) + struct.pack("<I", len(heads))
    return body + b"".join(map(head_of, heads)) + taken.take("signature", hexadecimal(64))


TYPES: Dict[str, Tuple[int, Callable[[Reader], bytes]]] = {
    "opening": (form.OPENING, opening_of), "receipt": (form.RECEIPT, receipt_of),
    "signature": (form.SIGNATURE, signature_of),
}


def record_of(value: Any) -> Tuple[int, bytes]:
    """Type and body of the record that an object states."""
    taken = Reader(value, "a record")
    name = taken.take("type")
    if not isinstance(name, str) or name not in TYPES:
        bad(f"type {name!a:.80} of a record")
    taken.what = f"the {name}"
    kind, make = TYPES[name]
    body = make(taken)
    taken.end()
    if len(body) > form.MOST_BODY:
        bad(f"a body of {len(body)} bytes, at most {form.MOST_BODY}", "bad_record")
    return kind, body


def lines(file: BinaryIO, begin: bytes = b"") -> Iterator[Tuple[int, bytes]]:
    """Type and body of each line's record. `begin` was read of the first line. Raises BadRecord at the first line that
    is none, with its number."""
    number = 0
    while True:
        line = begin + file.readline(MOST_LINE)
        begin, number = b"", number + 1
        if not line:
            return
        if not line.endswith(b"\n"):
            cut = len(line) < MOST_LINE
            raise BadRecord("cut_record" if cut else "bad_json", f"line {number}: no line feed at its end")
        try:
            yield record_of(value_of(line[:-1]))
        except BadRecord as error:
            raise BadRecord(error.problem, f"line {number}: {error.why}") from None
