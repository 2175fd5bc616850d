"""Parameters of openings that no server takes (docs/receipts.md), by the verifier in Python and by sortitionctl: one
table of both, and random parameters."""

import io
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import numpy as np
import receipt_maker as maker
from sortition_verify import parameter_check, records, verify
from sortition_verify.option_table import FIELDS

LIVE = 50
PHASE = {"begin": [3], "end": [4], "parameters": {"temperature": 0.5}}
MIROSTAT, ADAPTIVE_P = {"mirostat": {"version": 2}}, {"adaptive_p": {"target": 0.5}}
TAKEN = {
    "nothing": {}, "top_k above the vocabulary": {"top_k": 1 << 31}, "a phase that is nested": {"phases": [
        {**PHASE, "max_tokens": 0, "then": [4]}]},
    "a phase from the prompt's end": {"phases": [{"end": [4]}]}, "a state and a phase": {**MIROSTAT, "phases": [PHASE]},
    "an order that lacks a top_k that is off": {"top_k": LIVE, "chain": {"explicit": {"samplers": ["min_p"]}}},
    "an empty order": {"chain": {"explicit": {}}}, "mirostat off": {"mirostat": {"version": 0}, **ADAPTIVE_P},
    "the longest n-gram": {"no_repeat_ngram_size": 1024}, "the largest window": {"dry": {"window": 1 << 30}},
    "one token left": {"banned_token_ids": list(range(LIVE - 1))}, "a phase's own lists": {
        "banned_token_ids": list(range(LIVE)), "phases": [{**PHASE, "parameters": {"banned_token_ids": [1]}}]},
    "eight phases": {"phases": [{**PHASE, "begin": [number]} for number in range(8)]},
    "a stateful sampler last": {**MIROSTAT, "chain": {"explicit": {"samplers": ["temperature", "mirostat"]}}},
    "the longest repetition": {"repetition_stop": {"repeats": 16384, "max_period": 1}},
    "bias of 0": {"logit_bias": [{"token": 1}]},
}
REFUSED = {
    "allowed twice": {"allowed_token_ids": [1, 1, 2]}, "banned twice": {"banned_token_ids": [1, 1]},
    "stop twice": {"stop_token_ids": [1, 1]}, "nine phases": {"phases": [
        {**PHASE, "begin": [number]} for number in range(9)]},
    "bias twice": {"logit_bias": [{"token": 1, "bias": 1.0}, {"token": 1, "bias": 2.0}]},
    "min_tokens alone": {"min_tokens": 3}, "two states": {**MIROSTAT, **ADAPTIVE_P},
    "an n-gram too long": {"no_repeat_ngram_size": 1025},
    "min_tokens of no history": {"min_tokens": (1 << 30) + 1, "stop_token_ids": [3]},
    "a window of no history": {"penalty_scope": {"window": 1 << 31}, "frequency_penalty": 0.5},
    "a prefix of no history": {"penalty_scope": {"ignored_prefix": 1 << 31}},
    "a window of DRY": {"dry": {"window": 1 << 31}},
    "a phrase of no vocabulary": {"banned_phrases": [{"tokens": [1, LIVE]}]},
    "an empty phrase": {"banned_phrases": [{}]}, "a bad word of no vocabulary": {"bad_words": [{"tokens": [LIVE, 1]}]},
    "a bad word twice": {"bad_words": [{"tokens": [1, 2]}] * 2},
    "a breaker of no vocabulary": {"dry": {"multiplier": 0.75, "sequence_breakers": [{"tokens": [LIVE]}]}},
    "a bad word too long": {"bad_words": [{"tokens": [1] * 1025}]}, "p_less of 7": {"p_less": 7},
    "a sampler twice": {"chain": {"explicit": {"samplers": ["temperature", "dynamic_temperature"]}}},
    "a sampler of no name": {"chain": {"explicit": {"samplers": ["temperature", "foo"]}}},
    "an order without temperature": {"temperature": 0.5, "chain": {"explicit": {"samplers": ["min_p"]}}},
    "an empty order and a sampler": {"min_p": 0.5, "chain": {"explicit": {}}},
    "temperature 0 and no place for it": {"temperature": 0.0, "chain": {"explicit": {"samplers": ["min_p"]}}},
    "a sampler after a state": {**MIROSTAT, "chain": {"explicit": {"samplers": ["mirostat", "temperature"]}}},
    "no period": {"repetition_stop": {"repeats": 3, "min_period": 5, "max_period": 2}},
    "too long a repetition": {"repetition_stop": {"repeats": 65}},
    "two phases of one begin": {"phases": [PHASE, PHASE]},
    "a begin within another": {"phases": [{**PHASE, "begin": [1, 2, 3]}, {**PHASE, "begin": [2, 3]}]},
    "two phases from the prompt's end": {"phases": [{"end": [4]}, {"end": [5]}]},
    "a phase without an end": {"phases": [{"begin": [4]}]}, "a budget without an end": {"phases": [{"max_tokens": 3}]},
    "tokens to emit without a budget": {"phases": [{"begin": [3], "end": [4], "then": [4]}]},
    "a budget of no history": {"phases": [{**PHASE, "max_tokens": 1 << 30}]},
    "too long a begin": {"phases": [{**PHASE, "begin": [3] * 33}]},
    "a phase that masks all": {"phases": [{**PHASE, "parameters": {"banned_token_ids": list(range(LIVE))}}]},
    "a phase that masks all with a list outside": {"allowed_token_ids": [1], "phases": [
        {**PHASE, "parameters": {"banned_token_ids": [1]}}]},
    "a phase with a sampler out of its order": {"chain": {"explicit": {"samplers": ["temperature"]}}, "phases": [
        {**PHASE, "parameters": {"min_p": 0.5}}]},
    "all banned": {"banned_token_ids": list(range(LIVE))},
    "allowed and banned": {"allowed_token_ids": [1], "bad_words": [{"tokens": [1]}]},
    "adaptive_p without a target": {"adaptive_p": {"decay": 0.5}}, "mirostat 3": {"mirostat": {"version": 3}},
    "too many in phases": {"phases": [{**PHASE, "max_tokens": 1, "then": [1] * (1 << 17)}]},
    "too many listed": {"banned_phrases": [{"tokens": [number // LIVE % LIVE, number % LIVE] + [1] * 1022}
                                           for number in range(129)]},
}
WORDS = {
    "an empty list": [10, 0], "a preset and an order": [18, 5, 1, 1, 1, 2, 0], "a token that is 0": [9, 4, 3, 1, 1, 0],
    "a policy that is 0": [12, 1, 0], "an empty begin": [37, 6, 5, 1, 0, 2, 1, 4],
    "bytes behind a name": [18, 7, 2, 5, 1, 3, 5, int.from_bytes(b"min_", "little"), ord("p") | 1 << 8],
}


def opening(words, number):
    """A chain of these words, whose nonce is a number."""
    return maker.Chain(vocabulary=LIVE, words=words, nonce=number)


def refused_by_python(chains):
    report = verify(io.BytesIO(b"".join(chain.records[0] for chain in chains)))
    assert all(problem.name == "bad_record" for problem in report.problems), report.text()
    return {problem.chain.hex() for problem in report.problems}


def refused_by_sortitionctl(chains):
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        (at / "file").write_bytes(b"".join(chain.records[0] for chain in chains))
        subprocess.run([os.environ["TEST_SORTITIONCTL"], "verify", str(at / "file"), f"--report={at / 'report.html'}"],
                       capture_output=True, timeout=60)
        page = (at / "report.html").read_text(encoding="utf-8")
    return set(re.findall(r"<td>bad_record</td><td>chain ([0-9a-f]{32})</td>", page))


class ParametersTest(unittest.TestCase):
    def test_both_verifiers_refuse_the_same(self):
        words = {name: maker.words_of(given) for name, given in {**TAKEN, **REFUSED}.items()}
        named = {name: opening(given, number) for number, (name, given) in enumerate({**words, **WORDS}.items())}
        wanted = {name for name in named if name not in TAKEN}
        for refused_by in (refused_by_python, refused_by_sortitionctl):
            refused = refused_by(named.values())
            self.assertEqual({name for name, chain in named.items() if chain.id.hex() in refused}, wanted, refused_by)

    def test_random_parameters(self):
        generator = np.random.default_rng(21)
        chains = [opening(random_words(generator), number) for number in range(600)]
        ours, theirs = refused_by_python(chains), refused_by_sortitionctl(chains)
        for number, chain in enumerate(chains):
            self.assertEqual(chain.id.hex() in ours, chain.id.hex() in theirs, f"opening {number}")
        self.assertTrue(100 < len(ours) < 500, len(ours))

    def test_top_k_of_the_vocabulary_is_off_in_the_integers(self):
        """As in the integers that a server states."""
        off = maker.integers_of({"temperature": 0.5, "min_p": 0.25})
        chain = maker.Chain(parameters={"temperature": 0.5, "min_p": 0.25, "top_k": LIVE}, integers=off)
        self.assertEqual(verify(io.BytesIO(chain.records[0])).problems, [])

    def test_lists_are_read_once_for_all_phases(self):
        class Counted(list):
            reads = 0

            def __iter__(self):
                Counted.reads += 1
                return super().__iter__()

        for phases in (1, 8):
            Counted.reads = 0
            parameters = {"allowed_token_ids": Counted(range(40)), "phases": [
                {**PHASE, "begin": [number]} for number in range(phases)]}
            parameter_check.check_parameters(parameters, LIVE)
            reads = Counted.reads if phases == 1 else reads
            self.assertEqual(Counted.reads, reads)

    def test_chains_keep_no_lists(self):
        words = maker.words_of({"banned_token_ids": list(range(40))})
        verifier = maker.receipts.Verifier()
        verifier.read(io.BytesIO(opening(words, 1).records[0] + opening([10, 0], 2).records[0]))
        self.assertEqual([(chain.opening.words, chain.parameters) for chain in verifier.chains.values()],
                         [([], None), ([], None)])


def random_words(generator):
    """Words of few random parameters, of which some are wrong."""
    fields = dict(item for item in FIELDS.items() if generator.random() < 0.12)
    return words_within(generator, fields)


def words_within(generator, fields):
    words = []
    for number, (name, kind) in sorted(fields.items()):
        part = random_part(generator, name, kind)
        if part or isinstance(kind, dict):
            words += [number, len(part), *part]
    return words


def random_part(generator, name, kind):
    few = int(generator.integers(1, 4))
    if isinstance(kind, dict):
        return words_within(generator, {number: field for number, field in kind.items() if generator.random() < 0.6})
    if isinstance(kind, list) and kind[0] == records.NUMBER:
        return [int(token) for token in generator.integers(0, LIVE + 1, few)]
    if isinstance(kind, list) and kind[0] is str:
        return maker.part_of(kind, [str(name) for name in generator.choice(
            ["temperature", "min_p", "top_k", "top_p", "mirostat", "xtc", "adaptive_p"], few)])
    if isinstance(kind, list):
        items = [random_part(generator, name, kind[0]) for _ in range(few)]
        return [word for item in items for word in (len(item), *item)]
    if kind == records.FLOAT:
        value = generator.choice([0.25, 0.5, 1.0, 0.75, 2.0, 0.0, -1.0, 200.0], p=[.3, .2, .2, .1, .1, .05, .025, .025])
        return maker.part_of(kind, value)
    if kind == records.BOOL or isinstance(kind, tuple):
        return [int(generator.integers(0, 3))]
    return [int(generator.choice([0, 1, 2, 3, 5, 64, 1 << 30]))]


if __name__ == "__main__":
    unittest.main()
