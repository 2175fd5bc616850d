"""Inclusions: one receipt is among those of a day (docs/receipts-elsewhere.md): Merkle trees of RFC 6962."""

import io
from typing import Any, Iterable, List, Tuple

from sortition_verify import receipt_json as as_json
from sortition_verify import records as form
from sortition_verify.receipts import Report, Verifier
from sortition_verify.records import BadRecord, digest


def leaf_hash(body: bytes) -> bytes:
    return digest(b"\0" + body)


def root_of(leaf: bytes, place: int, leaves: int, path: List[bytes]) -> bytes:
    """The root that a leaf's hash and its path give (RFC 9162, section 2.1.3.2). Raises BadRecord if no tree of so
    many leaves has such a path."""
    last, root = leaves - 1, leaf
    if not 0 <= place <= last:
        raise BadRecord("wrong_path", f"leaf {place} of {leaves}")
    for beside in path:
        if last == 0:
            raise BadRecord("wrong_path", f"a path of {len(path)} hashes, which is too long for {leaves} leaves")
        if place & 1 or place == last:
            root = digest(b"\1" + beside + root)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            root = digest(b"\1" + root + beside)
        place, last = place >> 1, last >> 1
    if last:
        raise BadRecord("wrong_path", f"a path of {len(path)} hashes, which is too short for {leaves} leaves")
    return root


def object_of(text: bytes, name: str) -> as_json.Reader:
    """The members of a canonical line of this type."""
    if not text.endswith(b"\n"):
        raise BadRecord("cut_record", f"the {name} has no line feed at its end")
    taken = as_json.Reader(as_json.value_of(text[:-1]), f"the {name}")
    if taken.take("type") != name:
        raise BadRecord("bad_json", f"not a {name}")
    return taken


def number(value: Any) -> int:
    return int.from_bytes(as_json.wide(value), "little")


def shown(inclusion: bytes, root: bytes) -> Tuple[bytes, str]:
    """Opening and receipt as records, and in words what is shown. Raises BadRecord if nothing is."""
    stated = object_of(root, "root")
    leaves, wanted = stated.take("leaves", number), stated.take("root", as_json.hexadecimal(32))
    stated.end()
    taken = object_of(inclusion, "inclusion")
    place, count = taken.take("leaf", number), taken.take("leaves", number)
    path = [as_json.hexadecimal(32)(value) for value in taken.take("path", as_json.items)]
    file = b""
    for name, kind in (("opening", form.OPENING), ("receipt", form.RECEIPT)):
        found, body = as_json.record_of(taken.take(name))
        if found != kind:
            raise BadRecord("bad_json", f"the {name} of the inclusion is a record of another type")
        file += form.record_bytes(kind, body)
    taken.end()
    if count != leaves:
        raise BadRecord("wrong_path", f"of a tree of {count} leaves, the root's has {leaves}")
    if root_of(leaf_hash(body), place, leaves, path) != wanted:
        raise BadRecord("wrong_path", "the path leads to another root")
    receipt = form.receipt_of(body)
    return file, (f"receipt {receipt.index} of chain {receipt.chain.hex()}, token {receipt.token} at position "
                  f"{receipt.position}, is leaf {place} of the {leaves} under the root {wanted.hex()}")


def verify_inclusion(inclusion: bytes, root: bytes, seeds: Iterable[str] = ()) -> Tuple[Report, str]:
    """Checks that the receipt of a inclusion is under a root that the caller trusts, and its draw. Both are lines of
    canonical JSON. Returns the findings and in words what is shown; empty if nothing is. No signature is looked at."""
    verifier = Verifier(seeds=seeds)
    try:
        file, words = shown(inclusion, root)
    except BadRecord as error:
        verifier.problem(error.problem, error.why)
        return verifier.report, ""
    return verifier.read(io.BytesIO(file)), words
