"""The receipts of an archive (docs/verifier.md): their signature and chains, and each beside its text."""

import hashlib
import io
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Set

import numpy as np

from sortition_verify.option_table import FIELDS
from sortition_verify.options import single
from sortition_verify.receipts import Chain, Verifier
from sortition_verify.records import WATERMARK, Receipt, Signature
from sortition_verify.texts import SEED, VOCABULARY, Answers, Setting

NAMES = {name for name, _ in FIELDS.values()}  # of parameters that openings state
MOST_SIGNATURES = 1024  # each takes milliseconds


@dataclass
class SaidText:
    """One text as receipts have to state it: items by token."""

    setting: Setting
    tokens: List[int]
    logprobs: List[int]
    methods: List[int]
    phases: List[int]
    digests: List[bytes]  # of masks, by position modulo their number; none
    ends: List[int]  # of the tokens' parts of the kept ids and bits
    ids: Any
    bits: Any


def said_texts(setting: Setting, said: Answers, length: int) -> Dict[int, SaidText]:
    """By the texts' numbers."""
    (ids, bits), ends = said.places.by_id(), np.cumsum(said.places.kept_counts())
    found = {}
    for at in range(setting.texts):
        part = slice(at * length, (at + 1) * length)
        first = int(ends[part.start - 1]) if at else 0
        last = int(ends[part.stop - 1])
        found[setting.first + at] = SaidText(
            setting, *(array[part].tolist() for array in (said.tokens, said.words[:, 1], said.methods, said.phases)),
            said.digests, [0, *(ends[part] - first).tolist()], ids[first:last], bits[first:last])
    return found


def salt_of(text: int) -> bytes:
    return hashlib.sha256(f"sortition proof salt {text}".encode()).digest()[:16]


def seed_line(text: int) -> str:
    return f"{SEED + text} {salt_of(text).hex()}"


class TextReceipts(Verifier):
    """Checks records in order, and each receipt against its text. `texts` have those that agree with the law."""

    def __init__(self, keys: Iterable[bytes], listed: List[Setting], texts: Dict[int, SaidText], length: int) -> None:
        self.settings = {setting.first + at: setting for setting in listed for at in range(setting.texts)
                         if setting.has_receipts}
        super().__init__(keys, map(seed_line, self.settings), draws=False)
        self.texts, self.length = texts, length
        self.names = {f"text {text}".encode(): text for text in self.settings}
        self.signatures = 0
        self.text_of: Dict[bytes, int] = {}  # of chains
        self.seen: Dict[int, Set[int]] = {text: set() for text in self.settings}
        self.agree = 0

    def open(self, body: bytes) -> Optional[Chain]:
        chain = super().open(body)
        if chain is None:
            return None
        name, opening = chain.head[:16], chain.opening
        text = self.names.get(opening.request_id) if opening else None
        if text is None or opening is None:
            self.problem("wrong_text", "the opening is that of no text with receipts", name)
            return chain
        self.text_of[name] = text
        flags = WATERMARK if "watermark" in self.settings[text].parameters else 0
        if chain.parameters != stated(self.settings[text].parameters):
            self.problem("wrong_text", f"the parameters are not those of text {text}", name)
        elif (opening.vocabulary, opening.live_vocabulary, opening.choice_index, opening.flags & WATERMARK) != (
                VOCABULARY, VOCABULARY, 0, flags):
            self.problem("wrong_text", f"vocabulary, choice or flags are not those of text {text}", name)
        elif chain.seed != SEED + text:
            self.problem("wrong_seed", f"the commitment is not that of text {text}", name)
        return chain

    def sign(self, signature: Signature) -> None:
        self.signatures += 1
        if self.signatures <= MOST_SIGNATURES:
            super().sign(signature)
        elif self.signatures == MOST_SIGNATURES + 1:
            self.problem("too large", f"more than {MOST_SIGNATURES} signatures, of which the others are not checked")

    def receive(self, receipt: Receipt) -> None:
        super().receive(receipt)
        text = self.text_of.get(receipt.chain)
        if text is None:
            return
        n = receipt.position - self.settings[text].prompt
        if not 0 <= n < self.length:
            self.wrong(receipt, "wrong_receipt", f"position {receipt.position} is not one of text {text}")
            return
        self.seen[text].add(n)
        if text in self.texts:
            different = difference(receipt, self.texts[text], n)
            if different:
                self.wrong(receipt, "wrong_receipt", f"text {text}, token {n}: {different}")
            self.agree += not different


def difference(receipt: Receipt, said: SaidText, n: int) -> str:
    """Says how a receipt differs from its text; empty if it agrees."""
    mask = said.digests[receipt.position % len(said.digests)] if said.digests else None
    first, last = said.ends[n], said.ends[n + 1]
    wanted = {"token": said.tokens[n], "logprob": said.logprobs[n], "method": said.methods[n],
              "phase": said.phases[n], "mask": mask, "draw_salt": 0, "temperature": 0, "kept_count": last - first}
    for name, value in wanted.items():
        if getattr(receipt, name) != value:
            return f"{name} {getattr(receipt, name)!r}, {value!r} by the law"
    if not np.array_equal(receipt.ids, said.ids[first:last]) or not np.array_equal(receipt.bits, said.bits[first:last]):
        return "other kept tokens, or other bits of them"
    return ""


def stated(parameters: Dict[str, Any]) -> Dict[str, Any]:
    """Parameters as an opening states them."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(part) for name, part in value.items()}
        if isinstance(value, list):
            return [rounded(part) for part in value]
        return single(value) if isinstance(value, float) else value

    return {name: rounded(value) for name, value in parameters.items() if name in NAMES}


def check_receipts(files: Dict[str, bytes], records: bytes, report: Any, keys: List[bytes], listed: List[Setting],
                   texts: Dict[int, SaidText], length: int) -> None:
    numbers = [setting.first + at for setting in listed for at in range(setting.texts)]
    if files["seeds.txt"].decode("utf-8", "replace").splitlines() != list(map(seed_line, numbers)):
        report.problem("wrong_seed", "seeds.txt does not have the seeds and salts of the texts")
    named = report.machine.get("public_key")
    try:
        own = [bytes.fromhex(named)] if named else []
    except (TypeError, ValueError):
        own = []
        report.problem("damaged", "the public_key of machine.json is no key")
    if not keys:
        report.not_checked.append(f"whose the key {own[0].hex()} is, which the archive names" if own else
                                  "whose key has signed the receipts: the archive names none")
    verifier = TextReceipts(keys or own, listed, texts, length)
    found = verifier.read(io.BytesIO(records))
    if files["signature.bin"] and own and own[0] not in files["signature.bin"]:
        report.problem("mixed", "signature.bin is by another key than that of machine.json")
    for problem in found.problems:
        report.problem(problem.name, str(problem)[len(problem.name):].lstrip(": "))
    report.problem_counts.update(found.problem_counts - Counter(problem.name for problem in found.problems))
    if found.begun_before:
        report.problem("missing_receipt", f"{found.begun_before} chains lack their first receipts")
    for text, seen in verifier.seen.items():
        if len(seen) < length:
            report.problem("missing_receipt", f"{length - len(seen)} of its tokens have none", text=text)
    report.checked["receipts under a signature, in whole chains"] = found.signed
    report.checked["receipts that agree with the law"] = verifier.agree
    if found.signed < found.receipts:
        report.unchecked(f"that {found.receipts - found.signed} receipts are signed: they are under no valid signature")
    without = [setting.name for setting in listed if not setting.has_receipts]
    report.not_checked.append(f"receipts of {', '.join(without)}: there is no form for them")
