"""Checks receipts (docs/receipts.md): signatures and chains, draws again from kept tokens and seed, rows from logits.

    with open("receipts", "rb") as file:
        report = verify(file, keys=[bytes.fromhex(KEY)], seeds=["42 00112233445566778899aabbccddeeff"])
    print(report.text())

A file is read record by record, so its size does not matter. Ed25519 is this package's own, in Python.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from sortition_verify import chain as stages
from sortition_verify import ed25519, receipt_json
from sortition_verify import records as form
from sortition_verify.functions import LIMIT, MASKED, Scale, magnitude, sort_keys
from sortition_verify.history import edits, phase_after
from sortition_verify.option_table import LIMITS
from sortition_verify.parameter_check import check_parameters
from sortition_verify.parameters import compile_parameters, within
from sortition_verify.records import BadRecord, Opening, Receipt, Signature, digest
from sortition_verify.row import Compiled, Distribution, Row, RowError, answer, drawn_among, race_place

LAW_VERSION = 1
MOST_PROBLEMS = 1000  # that are kept, of any number that are counted
LEAST_DYNAMIC, MOST_DYNAMIC = 167773, 200 << 24  # dynamic temperatures, Q8.24
LOOK_BACK = {"repetition_penalty", "frequency_penalty", "presence_penalty", "dry", "no_repeat_ngram_size",
             "min_tokens", "bad_words", "phases"}  # parameters that make a row need the history


class SeveralChains(ValueError):
    """Rows were given for a file of several chains."""


@dataclass
class Problem:
    """One problem, by its name in docs/receipts.md; with the chain and the receipt, or the line of a seed."""

    name: str
    why: str
    chain: Optional[bytes] = None
    index: Optional[int] = None
    line: Optional[str] = None

    def __str__(self) -> str:
        where = "" if self.chain is None else f" in chain {self.chain.hex()}"
        place = "" if self.index is None else f" at receipt {self.index}"
        return f"{self.name}{where}{place}: {self.why}"


@dataclass
class Report:
    """Numbers of receipts by check, made or not made with the reason, and problems."""

    receipts: int = 0
    signed: int = 0
    drawn: int = 0
    rows: int = 0
    chains: int = 0
    problems: List[Problem] = field(default_factory=list)  # the first MOST_PROBLEMS
    problem_counts: Dict[str, int] = field(default_factory=Counter)  # of all problems, by name
    not_drawn: Dict[str, int] = field(default_factory=Counter)
    not_compared: Dict[str, int] = field(default_factory=Counter)
    begun_before: int = 0  # chains whose first receipts are not in the file
    compared: Set[int] = field(default_factory=set)  # positions of which a row holds

    def add(self, problem: Problem) -> None:
        self.problem_counts[problem.name] += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def text(self) -> str:
        """The report in words, one fact a line."""
        lines = [f"{self.receipts} receipts in {self.chains} chains",
                 f"signature and chain: {self.signed} hold" + reasons(
                     {"not under a valid signature of a trusted key, or after a break": self.receipts - self.signed}),
                 f"draw: {self.drawn} hold" + reasons(self.not_drawn),
                 f"row: {self.rows} hold" + reasons(self.not_compared)]
        if self.begun_before:
            lines.append(f"{self.begun_before} chains begin before the file: their first receipts were not checked")
        lines += [f"PROBLEM {problem}" for problem in self.problems]
        count = sum(self.problem_counts.values())
        if count > len(self.problems):
            lines.append(f"{count - len(self.problems)} more problems, by name of all: {dict(self.problem_counts)}")
        return "\n".join([*lines, f"{count} problems" if count else "no problem found"])


def reasons(counts: Mapping[str, int]) -> str:
    found = [f"{count} {why}" for why, count in sorted(counts.items()) if count]
    return f"; not checked: {', '.join(found)}" if found else ""


@dataclass
class Chain:
    """The state of a chain at a place of the file."""

    head: bytes
    opening: Optional[Opening] = None
    count: int = 0  # receipts so far, as the last one's index says
    begun: bool = False
    fits: bool = True
    waiting: int = 0  # receipts that fit, under no signature yet
    parameters: Optional[Dict[str, Any]] = None  # after the opening for rows alone
    compiled: List[Compiled] = field(default_factory=list)  # outside of phases, then in each; empty: unknown
    mask_nan: bool = False
    seed: Optional[int] = None
    unknown: str = ""  # the reason why no draw of the chain can be checked
    tokens: Dict[int, int] = field(default_factory=dict)  # by position, if rows are compared
    masks: Dict[bytes, Any] = field(default_factory=dict)  # words by their digest


class Verifier:
    """Reads records in order; `report` has the findings so far. Arguments are as for verify."""

    def __init__(self, keys: Iterable[bytes] = (), seeds: Iterable[str] = (), rows: Optional[Mapping[int, Any]] = None,
                 prompt: Optional[Sequence[int]] = None, tolerance: Optional[float] = None, draws: bool = True,
                 masks: Iterable[Any] = ()) -> None:
        if tolerance is not None and not 0 <= tolerance < np.inf:
            raise ValueError(f"tolerance: {tolerance}; a finite number of nats, at least 0")
        self.report, self.masks = Report(), list(masks)
        self.keys, self.draws = set(keys), draws
        self.rows, self.prompt, self.tolerance = rows, prompt, tolerance
        self.chains: Dict[bytes, Chain] = {}
        self.commitments: Dict[bytes, Tuple[int, str]] = {}
        self.unopened: Dict[str, str] = {}  # lines that have opened nothing, with the reason
        for line in seeds:
            self.take_seed(line.strip())

    def take_seed(self, line: str) -> None:
        if not line or line.startswith("#"):
            return
        self.unopened[line] = "its seed and salt open no commitment of the file"
        try:
            seed, salt = line.split()
            commitment = seed_commitment(int(seed), bytes.fromhex(salt))
        except (ValueError, OverflowError) as error:
            self.unopened[line] = f"not a decimal seed and a salt of 32 hexadecimal digits: {error}"
            return
        self.commitments[commitment] = int(seed), line

    def problem(self, name: str, why: str, chain: Optional[bytes] = None, index: Optional[int] = None) -> None:
        self.report.add(Problem(name, why, chain, index))

    def read(self, file: BinaryIO) -> Report:
        """Reads a whole file, of records or of their lines of JSON."""
        try:
            begin = file.read(1)
            for kind, body in (receipt_json.lines if begin == b"{" else form.records)(file, begin):
                try:
                    self.take(kind, body)
                except BadRecord as error:
                    self.problem(error.problem, error.why)
        except BadRecord as error:
            self.problem(error.problem, error.why)
        for line, why in self.unopened.items():
            self.report.add(Problem("wrong_seed", why, line=line))
        self.report.chains = len(self.chains)
        return self.report

    def take(self, kind: int, body: bytes) -> None:
        if kind == form.OPENING:
            chain = self.open(body)
            if chain is not None and chain.opening is not None:
                chain.opening.words, chain.opening.integers = [], []  # the chain has what they compile to
                chain.parameters = chain.parameters if self.rows is not None else None
        elif kind == form.RECEIPT:
            self.report.receipts += 1
            self.receive(form.receipt_of(body))
        elif kind == form.SIGNATURE:
            self.sign(form.signature_of(body))
        else:
            raise BadRecord("bad_record", f"type {kind}")

    # --- check 1

    def open(self, body: bytes) -> Optional[Chain]:
        """Takes an opening. Returns its chain; None if it is known already."""
        head = digest(body)
        name = head[:16]
        if name in self.chains:
            return None
        if self.rows is not None and self.chains:
            raise SeveralChains("logits are those of one chain, and there are several")
        chain = self.chains[name] = Chain(head)
        magic, law = form.magic_and_law(body)
        try:
            chain.opening = form.opening_of(body)
            found = self.commitments.get(chain.opening.commitment)
            if found is not None:
                chain.seed = found[0]
                self.unopened.pop(found[1], None)
            if (magic, law) == (form.MAGIC, LAW_VERSION):
                self.compile(chain)
        except (BadRecord, ArithmeticError, LookupError, ValueError) as error:
            chain.unknown = "with parameters that are none"
            if (magic, law) == (form.MAGIC, LAW_VERSION):
                self.problem("bad_record", str(error), name)
        if (magic, law) != (form.MAGIC, LAW_VERSION):
            self.problem("unknown_law", f"law {law}, magic {magic!r}", name)
            chain.unknown = "of another law"
        return chain

    def compile(self, chain: Chain) -> None:
        opening = chain.opening
        live = opening.live_vocabulary
        if not 1 <= live <= opening.vocabulary < 1 << 20 or opening.choice_index > LIMITS["max_choice_index"]:
            raise ValueError("a vocabulary or a choice_index that no server takes")
        parameters = form.parameters_of(opening.words)
        check_parameters(parameters, live)
        phases = range(len(parameters.get("phases", [])) + 1)
        compiled = [compile_parameters(within(parameters, phase), live) for phase in phases]
        stated = opening.integers or [integers_of(options) for options, _ in compiled]
        if stated != [integers_of(options) for options, _ in compiled]:
            self.problem("wrong_integers", "the law makes other integers of its parameters", chain.head[:16])
            chain.unknown = "with wrong integers"
            return
        chain.parameters, chain.mask_nan = parameters, compiled[0][1]
        chain.compiled = [compiled_of(*integers) for integers in stated]
        for given in self.masks:
            words = form.live_words(given, live)
            if words is not None:
                chain.masks[form.mask_digest(words)] = words

    def receive(self, receipt: Receipt) -> None:
        chain = self.chains.get(receipt.chain)
        if chain is None:
            self.problem("unknown_chain", "no opening before it", receipt.chain, receipt.index)
            return
        if not chain.begun and receipt.index:
            self.report.begun_before += 1
        elif (receipt.index, receipt.previous) != (chain.count, chain.head):
            self.problem("broken_chain", f"after receipt {chain.count - 1} of the chain", receipt.chain, receipt.index)
            # A receipt on either side may be changed, so no later signature vouches for those before.
            chain.fits, chain.waiting = False, 0
        chain.begun, chain.count, chain.head = True, receipt.index + 1, receipt.digest
        chain.waiting += chain.fits
        if self.draws:
            self.draw(chain, receipt)
        if self.rows is not None:
            chain.tokens[receipt.position] = receipt.token
        if self.rows is not None and receipt.position in self.rows:
            self.compare(chain, receipt)
        else:
            self.report.not_compared["without logits"] += 1

    def sign(self, signature: Signature) -> None:
        valid = ed25519.verifies(signature.public_key, signature.signature, signature.signed)
        if not valid:
            self.problem("wrong_signature", f"not of the key {signature.public_key.hex()}")
        if self.keys and signature.public_key not in self.keys:
            self.problem("unknown_key", f"signed by {signature.public_key.hex()}")
            valid = False
        for chain_id, count, head, _ in signature.heads:
            chain = self.chains.get(chain_id)
            if chain is None:
                self.problem("unknown_chain", "a signature names it", chain_id)
            elif (count, head) != (chain.count, chain.head):
                self.problem("wrong_head", f"not the state of the chain, of {chain.count} receipts", chain_id, count)
            elif valid:
                self.report.signed += chain.waiting
                chain.waiting = 0

    # --- check 2

    def draw(self, chain: Chain, receipt: Receipt) -> None:
        reason = self.draw_again(chain, receipt)
        if reason:
            self.report.not_drawn[reason] += 1

    def draw_again(self, chain: Chain, receipt: Receipt) -> str:
        """Compares token and logprob. Returns the reason if the draw could not be checked."""
        if not chain.compiled:
            return chain.unknown
        if not receipt.listed:
            return "without a list of their kept tokens"
        impossible = impossibility(chain, receipt)
        if impossible:
            self.wrong(receipt, "wrong_token", impossible)
            return ""
        compiled = chain.compiled[receipt.phase]
        adaptive = any(stage[0] == stages.ADAPTIVE_P for stage in compiled.chain)
        kept, drawn, reason = kept_distribution(compiled, receipt), receipt.token, ""
        if adaptive:
            reason = "with adaptive_p"
        elif receipt.method in (form.ACCEPTED, form.REPLACED):
            reason = "decided by a draft's probabilities"
        elif receipt.method == form.RACE and chain.opening.flags & form.WATERMARK:
            reason = "with a watermark"
        elif receipt.method == form.RACE and chain.seed is None:
            reason = "without the seed"
        elif receipt.method == form.RACE:
            drawn = drawn_among(kept.ids, kept.distances, noise_of(chain, receipt))
        logprob = kept.logprob_bits(kept.bits_and_rank(receipt.token)[0])
        if drawn != receipt.token:
            self.wrong(receipt, "wrong_token", f"{receipt.token} is recorded, {drawn} is drawn")
        elif logprob != receipt.logprob and not adaptive:
            self.wrong(receipt, "wrong_logprob", f"0x{receipt.logprob:08x} is recorded, 0x{logprob:08x} follows")
        else:
            self.report.drawn += not reason
            return reason
        return ""

    def wrong(self, receipt: Receipt, name: str, why: str) -> None:
        self.problem(name, why, receipt.chain, receipt.index)

    # --- check 3

    def compare(self, chain: Chain, receipt: Receipt) -> None:
        reason = self.compare_row(chain, receipt)
        if reason:
            self.report.not_compared[reason] += 1

    def compare_row(self, chain: Chain, receipt: Receipt) -> str:
        """Runs the law over the position's logits. Returns the reason if they could not be compared."""
        parameters = chain.parameters
        if not chain.compiled or parameters is None:
            return chain.unknown
        if receipt.phase >= len(chain.compiled):
            self.wrong(receipt, "wrong_row", "a phase that the parameters do not have")
            return ""
        compiled = chain.compiled[0]
        greedy = all(options.greedy for options in chain.compiled)
        if compiled.chain and compiled.chain[-1][0] in stages.STATEFUL:
            return "whose sampler keeps a state"
        draws = receipt.method in (form.RACE, form.FIRST)
        if draws and not greedy and chain.opening.flags & form.WATERMARK:
            return "with a watermark"
        if chain.seed is None and not greedy:
            return "whose margin needs the seed" if self.tolerance is not None else "without the seed"
        if len(self.rows[receipt.position]) < chain.opening.live_vocabulary:
            self.wrong(receipt, "wrong_row", f"{len(self.rows[receipt.position])} logits, the vocabulary has more")
            return ""
        if receipt.token >= chain.opening.live_vocabulary:
            self.wrong(receipt, "wrong_row", "a token that is not in the live vocabulary")
            return ""
        if receipt.mask is not None and receipt.mask not in chain.masks:
            return "whose step's mask was not given"
        history = self.history(chain, receipt, parameters)
        if history is None:
            return "without the tokens before them, all of the vocabulary"
        phase, forced = phase_after(parameters, *history)
        if phase != receipt.phase:
            self.wrong(receipt, "wrong_row", f"phase {receipt.phase} is recorded, the history gives {phase}")
            return ""
        row = row_of(chain, receipt, self.rows[receipt.position], *history, forced)
        if not draws:
            row.score = receipt.token
        try:
            got = answer(row)
        except RowError as error:
            self.wrong(receipt, "wrong_row", f"the logits fail: {error}")
            return ""
        if self.tolerance is None:
            difference = row_difference(receipt, got)
        elif not draws:
            return "decided by a draft's probabilities"
        else:
            *_, far = race_place(got.processed.ids, got.processed.distances, row.noise(), receipt.token)
            lost = f"the token lost by {far:.3g} nats, {self.tolerance:g} allowed"
            difference = "" if far <= self.tolerance else lost
        if difference:
            self.wrong(receipt, "wrong_row", difference)
        else:
            self.report.rows += 1
            self.report.compared.add(receipt.position)
        return ""

    def history(self, chain: Chain, receipt: Receipt, parameters: Dict[str, Any]) -> Optional[Tuple[List[int], int]]:
        """Tokens before the receipt's and the prompt's length; None if they are needed, and not known or not in the
        vocabulary."""
        if not LOOK_BACK & set(parameters):
            return [], 0
        if self.prompt is None:
            return None
        tokens = list(self.prompt)
        for position in range(len(tokens), receipt.position):
            if position not in chain.tokens:
                return None
            tokens.append(chain.tokens[position])
        return None if max(tokens, default=0) >= chain.opening.live_vocabulary else (tokens, len(self.prompt))


def verify(file: BinaryIO, keys: Iterable[bytes] = (), seeds: Iterable[str] = (),
           rows: Optional[Mapping[int, Any]] = None, prompt: Optional[Sequence[int]] = None,
           tolerance: Optional[float] = None, draws: bool = True, masks: Iterable[Any] = ()) -> Report:
    """Checks a file of receipts. Reads each record once and keeps none.

    `keys` are the public keys that are trusted; with none, every key is, and only the signature is checked. `seeds` are
    lines "SEED SALT" that open commitments. `rows` are logits by position, as f32 bits, of the file's only chain: with
    several, SeveralChains is raised. `prompt` are its prompt's tokens, which options that look at a history need. With
    a `tolerance` in nats the logits may be recomputed ones: a token may lose the race by that much, and its kept tokens
    are not compared. `masks` are packed masks of steps, as 32-bit words and in any order: a receipt says which one its
    step had.
    """
    return Verifier(keys, seeds, rows, prompt, tolerance, draws, masks).read(file)


def seed_commitment(seed: int, salt: bytes) -> bytes:
    if len(salt) != 16:
        raise ValueError(f"a salt of {len(salt)} bytes")
    return digest(b"sortition seed 1" + salt + seed.to_bytes(8, "little"))


def integers_of(compiled: Compiled) -> Tuple[int, int, int, List[List[int]]]:
    """Options as an opening states them."""
    padded = [] if compiled.greedy else [stage + [0] * (5 - len(stage)) for stage in compiled.stages()]
    return int(compiled.greedy), compiled.repetition, compiled.inverse_repetition, padded


def compiled_of(greedy: int, repetition: int, inverse: int, chain: List[List[int]]) -> Compiled:
    """Options from what an opening states, without a rule for rounding."""
    return Compiled(greedy=bool(greedy), repetition=repetition, inverse_repetition=inverse, chain=chain)


def noise_of(chain: Chain, receipt: Receipt) -> Tuple[Tuple[int, int], int, int]:
    seed = chain.seed or 0
    stream = chain.opening.choice_index | receipt.draw_salt << 16
    return (seed & 0xFFFFFFFF, seed >> 32), receipt.position, stream & 0xFFFFFFFF


def impossibility(chain: Chain, receipt: Receipt) -> str:
    """Why no row has these kept tokens, or this one of them; empty if one may."""
    live, bits = chain.opening.live_vocabulary, receipt.bits
    if receipt.phase >= len(chain.compiled):
        return "a phase that the parameters do not have"
    compiled = chain.compiled[receipt.phase]
    place = int(np.searchsorted(receipt.ids, receipt.token))
    first = int(bits[np.argmax(sort_keys(bits))])
    dynamic = any(stage[0] == stages.DYNAMIC_TEMPERATURE for stage in compiled.chain)
    if receipt.token >= live or receipt.ids[-1] >= live:
        return "a token that is not in the live vocabulary"
    if ((bits >> 23 & 255 == 255) & (bits != MASKED)).any() or magnitude(first) >= LIMIT:
        return "a kept token's bits are those of no logit"
    if not LEAST_DYNAMIC <= receipt.temperature <= MOST_DYNAMIC if dynamic else receipt.temperature:
        return f"a dynamic temperature of {receipt.temperature}"
    if compiled.greedy != (receipt.method == form.FIRST) or compiled.greedy and receipt.kept_count != 1:
        return "the method is not that of the temperature"
    if place == len(receipt.ids) or receipt.ids[place] != receipt.token:
        return f"{receipt.token} is not among the kept tokens"
    return ""


def kept_distribution(compiled: Compiled, receipt: Receipt) -> Distribution:
    """The processed distribution that a receipt's kept tokens are, if that is possible."""
    order = np.argsort(~sort_keys(receipt.bits), kind="stable")
    ids, bits = receipt.ids[order], receipt.bits[order]
    scale, shown = stages.shown_temperature([] if compiled.greedy else compiled.stages(), receipt.temperature)
    first = int(bits[0])
    return Distribution(ids, bits, first, Scale(first, scale).distances(bits), shown)


def row_of(chain: Chain, receipt: Receipt, bits: Any, tokens: List[int], prompt: int, forced: Optional[int]) -> Row:
    """The row that the receipt's token was drawn from."""
    (low, high), position, stream = noise_of(chain, receipt)
    parameters = within(chain.parameters or {}, receipt.phase)
    allowed = sorted(parameters.get("allowed_token_ids", [])) or None
    return Row(bits=np.asarray(bits, np.uint32)[:chain.opening.live_vocabulary], compiled=chain.compiled[receipt.phase],
               seed=high << 32 | low, position=position, stream=stream, mask_nan=chain.mask_nan,
               edits=edits(parameters, tokens, prompt) if forced is None else [],
               allowed_tokens=allowed if forced is None else [forced],
               allowed_bits=chain.masks[receipt.mask] if receipt.mask is not None and forced is None else None)


def row_difference(receipt: Receipt, got: Any) -> str:
    """Says how the law's answer to the logits differs from the receipt; empty if it agrees."""
    kept = got.processed
    if len(kept.ids) != receipt.kept_count:
        return f"the logits keep {len(kept.ids)} tokens, {receipt.kept_count} are recorded"
    if receipt.listed:
        by_id = np.argsort(kept.ids)
        if not np.array_equal(kept.ids[by_id], receipt.ids) or not np.array_equal(kept.bits[by_id], receipt.bits):
            return "the logits keep other tokens, or other bits of them"
    if got.token != receipt.token:
        return f"the logits give token {got.token}, {receipt.token} is recorded"
    logprob = kept.logprob_bits(kept.bits_and_rank(receipt.token)[0])
    return "" if logprob == receipt.logprob else f"the logits give logprob 0x{logprob:08x}"
