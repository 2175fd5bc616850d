"""The file receipts.bin of an archive (docs/proof.md): records of receipts as columns, and back."""

from typing import Any, Iterator, List

import numpy as np

from sortition_verify.records import LISTED, MASKED, OPENING, PHASED, RECEIPT, digest, record_bytes

MAGIC = b"sortcol1"
LONGS = ("step_id", "history_hash")
WORDS = ("position", "offset", "flags", "method", "draw_salt", "temperature", "token", "logprob", "kept_count", "phase")
IN_COLUMNS, WHOLE = 0, 1
# A body between index and kept tokens. Its phase stands at its end.
BODY = np.dtype([(name, "<u8") for name in LONGS] + [(name, "<u4") for name in WORDS[:-1]])


class Taken:
    """A file that is read from its beginning. Raises ValueError where it ends early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def bytes(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"it ends early: {size} bytes are missing at byte {self.at}")
        self.at += size
        return self.data[self.at - size:self.at]

    def column(self, count: int, kind: str) -> Any:
        """Numbers, of which first all first bytes stand there, then all second ones, and so on."""
        size = int(kind[2:])
        return np.ascontiguousarray(np.frombuffer(self.bytes(size * count), np.uint8).reshape(size, count).T).view(
            kind).reshape(count)


def unpacked(data: bytes) -> bytes:
    """The records of the file. Raises ValueError for bytes that are none."""
    taken = Taken(data)
    if taken.bytes(len(MAGIC)) != MAGIC:
        raise ValueError("it has another beginning")
    records, count = np.frombuffer(taken.bytes(8), "<u4").tolist()
    forms = np.frombuffer(taken.bytes(records), np.uint8)
    if (forms > WHOLE).any() or np.count_nonzero(forms == IN_COLUMNS) != count:
        raise ValueError("its forms are not those of its records")
    fixed = np.zeros(count, BODY)
    for name in LONGS:
        fixed[name] = taken.column(count, "<u8")
    for name in WORDS[:-1]:
        fixed[name] = taken.column(count, "<u4")
    phases, flags = taken.column(count, "<u4"), fixed["flags"]
    masked, phased = flags & MASKED != 0, flags & PHASED != 0
    if phases[~phased].any():
        raise ValueError("a phase of a receipt without one")
    ends = np.cumsum(np.where(flags & LISTED, fixed["kept_count"], 0), dtype=np.int64)
    masks = taken.bytes(32 * int(np.count_nonzero(masked)))
    pairs = np.stack([taken.column(int(ends[-1]) if count else 0, "<u4") for _ in ("ids", "bits")], axis=1)
    # Behind the fixed part of a body stand these, of each receipt up to its end.
    tails = [pairs.tobytes(), masks, phases[phased].tobytes()]
    tail_ends = [8 * ends, 32 * np.cumsum(masked), 4 * np.cumsum(phased)]
    receipts = bodies(fixed.tobytes(), tails, [[0, *ends.tolist()] for ends in tail_ends])
    return b"".join(in_order(forms.tolist(), receipts, taken))


def bodies(fixed: bytes, tails: List[bytes], ends: List[List[int]]) -> Iterator[bytes]:
    """The bodies of the receipts in columns, without chain, previous hash and index."""
    size = BODY.itemsize
    for i in range(len(fixed) // size):
        yield fixed[i * size:(i + 1) * size] + b"".join(
            [tail[end[i]:end[i + 1]] for tail, end in zip(tails, ends)])


def in_order(forms: List[int], receipts: Iterator[bytes], taken: Taken) -> Iterator[bytes]:
    """All records. A receipt in columns continues the chain of the last opening."""
    chain, head, index = b"", b"", 0
    for form in forms:
        if form == WHOLE:
            begin = taken.bytes(5)
            body = taken.bytes(int.from_bytes(begin[1:], "little"))
            if begin[0] == OPENING:
                head, index = digest(body), 0
                chain = head[:16]
            yield begin + body
        elif not chain:
            raise ValueError("a receipt in columns before an opening")
        else:
            body = chain + head + index.to_bytes(8, "little") + next(receipts)
            head, index = digest(body), index + 1
            yield record_bytes(RECEIPT, body)
    if taken.at != len(taken.data):
        raise ValueError("bytes behind its records")
