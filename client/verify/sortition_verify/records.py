"""Records of receipts (docs/receipts.md): reading a file of any size, and decoding its bytes."""

import hashlib
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from sortition_verify.option_table import FIELDS, IMPLICIT

MOST_BODY = 1 << 24
MAGIC = b"sortrcp1"
OPENING, RECEIPT, SIGNATURE = 1, 2, 3
WATERMARK, INTEGERS = 1, 2  # flags of an opening
HISTORY, LISTED, MASKED, PHASED = 1, 2, 4, 8  # flags of a receipt
ENDED = 1  # flag of a head
RACE, FIRST, ACCEPTED, REPLACED = 1, 2, 3, 4  # methods

OPENING_HEAD = struct.Struct("<8sIIIII16s32s")
RECEIPT_HEAD = struct.Struct("<16s32sQQQIIIIIIIII")
HEAD = struct.Struct("<16sQ32sI")


class BadRecord(Exception):
    """A record that the format does not allow, or a file that ends within one: `problem` is its name."""

    def __init__(self, problem: str, why: str) -> None:
        super().__init__(f"{problem}: {why}")
        self.problem, self.why = problem, why


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def live_words(words: Any, live: int) -> Any:
    """The words of a packed mask that say which live tokens it allows; None if it is too short."""
    words = np.array(words).reshape(-1).astype("<u4", casting="unsafe")[:(live + 31) // 32]
    if len(words) * 32 < live:
        return None
    if live % 32:
        words[-1] &= np.uint32((1 << live % 32) - 1)
    return words


def mask_digest(words: Any) -> bytes:
    return digest(b"sortition mask 1" + words.tobytes())


def records(file: BinaryIO, begin: bytes = b"") -> Iterator[Tuple[int, bytes]]:
    """Type and body of each record. `begin`, at most 5 bytes, was read before. Reads one record at a time. Raises
    BadRecord where no further one can be read."""
    head = begin + file.read(5 - len(begin))
    while True:
        if not head:
            return
        if len(head) < 5:
            raise BadRecord("cut_record", "the file ends within a record's head")
        kind, length = struct.unpack("<BI", head)
        if length > MOST_BODY:
            raise BadRecord("bad_record", f"a body of {length} bytes, at most {MOST_BODY}")
        body = file.read(length)
        if len(body) < length:
            raise BadRecord("cut_record", f"the file ends {length - len(body)} bytes before the record")
        yield kind, body
        head = file.read(5)


def record_bytes(kind: int, body: bytes) -> bytes:
    return struct.pack("<BI", kind, len(body)) + body


@dataclass
class Opening:
    vocabulary: int
    live_vocabulary: int
    choice_index: int
    flags: int
    commitment: bytes
    request_id: bytes
    words: List[int]
    integers: List[Tuple[int, int, int, List[List[int]]]]  # by phase: greedy, repetition, its inverse, stages


@dataclass
class Receipt:
    chain: bytes
    previous: bytes
    index: int
    step_id: int
    history_hash: int
    position: int
    offset: int
    flags: int
    method: int
    draw_salt: int
    temperature: int  # of dynamic temperature, Q8.24
    token: int
    logprob: int  # bits of the f32
    kept_count: int
    ids: Any  # of the kept tokens, ascending, and their bits; both empty if they are not listed
    bits: Any
    mask: Optional[bytes]  # mask_digest of the step's mask; None: it had none
    phase: int  # phase of the draw; 0: outside of phases
    digest: bytes

    @property
    def listed(self) -> bool:
        return bool(self.flags & LISTED)


@dataclass
class Signature:
    public_key: bytes
    time: int
    heads: List[Tuple[bytes, int, bytes, int]]  # chain, receipts, head, flags
    signature: bytes
    signed: bytes  # the bytes under the signature


def need(truth: bool, why: str) -> None:
    if not truth:
        raise BadRecord("bad_record", why)


def magic_and_law(body: bytes) -> Tuple[bytes, int]:
    """The beginning of an opening of any law."""
    return body[:8], int.from_bytes(body[8:12], "little")


def opening_of(body: bytes) -> Opening:
    need(len(body) >= OPENING_HEAD.size + 8, "an opening that is too short")
    _, _, vocabulary, live, choice, flags, _, commitment = OPENING_HEAD.unpack_from(body)
    at = OPENING_HEAD.size
    size, = struct.unpack_from("<I", body, at)
    need(at + 4 + size + 4 <= len(body), "an opening that ends within its request_id")
    request_id = body[at + 4:at + 4 + size]
    at += 4 + size
    count, = struct.unpack_from("<I", body, at)
    need(len(body) >= at + 4 + 4 * count, "an opening that ends within its parameters")
    need(flags & ~(WATERMARK | INTEGERS) == 0, f"flags {flags} of an opening")
    words = list(struct.unpack_from(f"<{count}I", body, at + 4))
    integers = integers_of(body[at + 4 + 4 * count:]) if flags & INTEGERS else []
    need(flags & INTEGERS != 0 or len(body) == at + 4 + 4 * count, "an opening of another length than its parameters")
    return Opening(vocabulary, live, choice, flags, commitment, request_id, words, integers)


def integers_of(body: bytes) -> List[Tuple[int, int, int, List[List[int]]]]:
    """The integers that an opening states, which end its body."""
    need(len(body) % 4 == 0 and len(body) >= 4, "integers that are no words")
    phases, *words = struct.unpack(f"<{len(body) // 4}I", body)
    found: List[Tuple[int, int, int, List[List[int]]]] = []
    at = 0
    while at < len(words):
        need(at + 4 <= len(words), "integers that end within a phase")
        greedy, repetition, inverse, count = words[at:at + 4]
        begin, at = at + 4, at + 4 + 5 * count
        need(greedy <= 1 and at <= len(words), "integers that end within a phase")
        found.append((greedy, repetition, inverse, [words[place:place + 5] for place in range(begin, at, 5)]))
    need(len(found) == phases > 0, "integers of another number of phases than stated")
    return found


def receipt_of(body: bytes) -> Receipt:
    need(len(body) >= RECEIPT_HEAD.size, "a receipt that is too short")
    fields = RECEIPT_HEAD.unpack_from(body)
    flags, method, kept_count = fields[7], fields[8], fields[13]
    need(flags & ~(HISTORY | LISTED | MASKED | PHASED) == 0, f"flags {flags} of a receipt")
    need(RACE <= method <= REPLACED, f"method {method}")
    need(kept_count >= 1, "a receipt without kept tokens")
    listed = kept_count if flags & LISTED else 0
    at = RECEIPT_HEAD.size + 8 * listed
    end = at + (32 if flags & MASKED else 0)
    need(len(body) == end + (4 if flags & PHASED else 0), "a receipt of another length than its kept tokens and mask")
    phase = int.from_bytes(body[end:], "little")
    need(phase != 0 or not flags & PHASED, "phase 0 of a receipt")
    pairs = np.frombuffer(body, "<u4", 2 * listed, RECEIPT_HEAD.size).reshape(listed, 2)
    ids, bits = pairs[:, 0].astype(np.int64), pairs[:, 1]
    need(bool((np.diff(ids) > 0).all()), "kept tokens that do not ascend")
    return Receipt(*fields, ids, bits, body[at:end] or None, phase, digest(body))


def signature_of(body: bytes) -> Signature:
    need(len(body) >= 44, "a signature that is too short")
    time, count = struct.unpack_from("<QI", body, 32)
    need(count >= 1 and len(body) == 44 + HEAD.size * count + 64, "a signature of another length than its heads")
    heads = [HEAD.unpack_from(body, 44 + HEAD.size * i) for i in range(count)]
    need(all(flags & ~ENDED == 0 for *_, flags in heads), "flags of a head")
    return Signature(body[:32], time, heads, body[-64:], b"sortition receipts 1" + body[:-64])


DECODERS: Dict[int, Callable[[bytes], Any]] = {OPENING: opening_of, RECEIPT: receipt_of, SIGNATURE: signature_of}


# --- the parameters of an opening

NUMBER, FLOAT, BOOL = "number", "float", "bool"


def parameters_of(words: List[int], fields: Dict[int, Any] = FIELDS) -> Dict[str, Any]:
    """The parameters as JSON with the contract's names. Raises BadRecord for words that are none."""
    found: Dict[str, Any] = {}
    at, last = 0, 0
    while at < len(words):
        need(at + 2 <= len(words) and at + 2 + words[at + 1] <= len(words), "parameters that end within an entry")
        number, size = words[at], words[at + 1]
        need(number > last, "parameters out of order")
        need(number in fields, f"parameters have field {number}, which this program does not know")
        name, kind = fields[number]
        part = words[at + 2:at + 2 + size]
        need(part != [0] or name not in IMPLICIT, f"{name} is stated, and 0")
        found[name] = value_of(kind, part)
        at, last = at + 2 + size, number
    return found


def value_of(kind: Any, words: List[int]) -> Any:
    if isinstance(kind, dict):
        return parameters_of(words, kind)
    if isinstance(kind, list):
        need(bool(words), "a list without items")
        return words if kind[0] == NUMBER else list(items_of(kind[0], words))
    need(len(words) == 1, "a number of several words")
    if kind == FLOAT:
        return struct.unpack("<f", struct.pack("<I", words[0]))[0]
    if kind == BOOL:
        need(words[0] <= 1, f"{words[0]}, which is not true or false")
        return bool(words[0])
    if isinstance(kind, tuple):
        need(words[0] < len(kind), "a value that is none of its enumeration")
        return kind[words[0]]
    return words[0]


def items_of(kind: Any, words: List[int]) -> Iterator[Any]:
    at = 0
    while at < len(words):
        size = words[at]
        count = (size + 3) // 4 if kind is str else size
        need(at + 1 + count <= len(words), "parameters that end within an item")
        part = words[at + 1:at + 1 + count]
        if kind is str:
            text = struct.pack(f"<{count}I", *part)
            need(not any(text[size:]), "bytes behind a text")
            yield text[:size].decode("utf-8", "replace")
        else:
            yield parameters_of(part, kind)
        at += 1 + count
