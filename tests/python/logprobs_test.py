"""docs/logprobs.md: its programs run, its numbers and its "yes" and "no" are computed again, its claims hold."""

import itertools
import os
import pathlib
import re
import unittest

import numpy
import sortition
import sortition.local
import sortition_verify
from sortition.v1.parameters_pb2 import SamplingParameters
from sortition_verify.option_table import NESTED

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
PAGE = (SOURCE / "docs/logprobs.md").read_text(encoding="utf-8")
WIDTH = 200
ALL = {"raw_logprobs": {}, "tempered_logprobs": {}, "processed_logprobs": {}, "kept_log_mass": True,
       "kept_set": {"tokens": True}}
ACCURACY = 2e-7  # of a logprob before its rounding, as the page says


def row(seed=1, width=WIDTH):
    return (numpy.random.default_rng(seed).standard_normal(width) * 2).astype(numpy.float32)


def table(header):
    """Returns the rows of the page's table whose header begins like this, as lists of cells."""
    lines = PAGE[PAGE.index(f"| {header} |"):].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def log_softmax(logits, among=True):
    logits = numpy.where(among, numpy.asarray(logits, float), -numpy.inf)
    logits = logits - logits.max()
    return logits - numpy.log(numpy.exp(logits).sum())


def rounding(values):
    """Half a unit in the last place of an f32."""
    values = numpy.asarray(values, numpy.float32)
    return numpy.where(numpy.isfinite(values), numpy.spacing(numpy.abs(values)) / 2.0, 0)


class Four:
    """The four quantities, of every token of a row."""

    def __init__(self, answer, width):
        for name in ("raw", "tempered", "processed"):
            part = getattr(answer, name)
            setattr(self, name, numpy.array(part.requested_logprobs))
            setattr(self, f"{name}_ranks", numpy.array(part.requested_ranks))
        self.token, self.mass = answer.token, answer.kept_log_mass
        self.kept = numpy.isin(numpy.arange(width), answer.kept_tokens)

    def columns(self):
        return [part.tobytes() for part in (self.raw, self.tempered, self.processed, numpy.float64(self.mass))]


class LogprobsTest(unittest.TestCase):
    def setUp(self):
        self.sampler = sortition.local.Sampler()

    def four(self, logits, allowed=None, draw_salt=0, **options):
        sequence = self.sampler.open(vocabulary_size=len(logits), **{"seed": 1, **ALL, **options},
                                     logprob_token_ids=list(range(len(logits))))
        return Four(self.sampler.draw(sequence, logits, allowed=allowed, draw_salt=draw_salt), len(logits))

    def assert_near(self, found, expected, rounded=()):
        """Equal within the page's accuracy and the roundings of the f32 that `found` is made from."""
        bound = ACCURACY + sum((rounding(values) for values in rounded or (found,)), numpy.zeros(()))
        same = numpy.asarray(found) == numpy.asarray(expected)  # -Inf, too
        with numpy.errstate(invalid="ignore"):
            self.assertTrue((same | (numpy.abs(found - expected) <= bound)).all(), (found, expected))


class PageTest(LogprobsTest):
    def test_programs_and_their_ratios(self):
        names = {}
        for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(program, names)
        rows = table("new / old")
        self.assertEqual([cells[0] for cells in rows], list(names["found"]))
        right = names["found"][rows[0][0]][1]
        for way, mean, reward, off, before, verdict in rows:
            with self.subTest(way):
                *found, first = names["found"][way]
                computed = [f"{number:.4f}" for number in (*found[:2], found[1] - right, min(first), max(first))]
                numbers = [mean, reward, off, *(before.split(" to ") if " to " in before else [before, before])]
                self.assertEqual([number.replace("-0.0000", "0.0000") for number in computed], numbers)
                self.assertEqual(verdict.startswith("right"), abs(found[1] - right) < 1e-6)
                self.assertEqual(verdict.endswith("hidden"), max(map(abs, numpy.subtract(first, 1))) < 1e-6 and
                                 verdict.startswith("wrong"))

    def test_expectations_from_float64_alone(self):
        old, new = numpy.arange(2, -2, -0.5), numpy.array([1, 2, 1.25, 1.5, 0.5, -1, 0, -1])
        reward = numpy.array([1, 0, 3, -1, 2, 4, 0, 5])
        before = numpy.exp(log_softmax(old / 0.7))
        kept = numpy.cumsum(before) - before < 0.8
        p = numpy.exp(log_softmax(new / 0.7))
        mean, expectation = re.search(r"E\[ratio\] = (\S+) and E\[ratio · reward\] = (\d\.\d+)", PAGE).groups()
        self.assertEqual(mean, "1")
        over_kept = numpy.exp(log_softmax(new / 0.7, kept))
        self.assertEqual(f"{(over_kept * reward).sum():.4f}", expectation)
        self.assertIn(f"over **all** tokens has {(p * reward).sum():.4f}", PAGE)
        rows = {cells[0]: cells for cells in table("new / old")}
        # The two biases that have a closed form: the new mass of K, and its quotient by the old one.
        for way, bias in (("tempered / processed", p[kept].sum()),
                          ("tempered / tempered", p[kept].sum() / before[kept].sum())):
            self.assertEqual(rows[way][1], f"{bias:.4f}")
            self.assertEqual(rows[way][2], f"{bias * (over_kept * reward).sum():.4f}")
        self.assertEqual(rows["tempered / processed"][4], f"{before[kept].sum():.4f}")
        one_sided = numpy.exp(log_softmax(new, kept))
        self.assertEqual(rows["processed at T = 1 / processed"][2], f"{(one_sided * reward).sum():.4f}")
        own = {1, 2, 3}  # has 0.8057 of the new policy, without token 2 0.6550
        numpy.testing.assert_allclose([p[sorted(own)].sum(), p[[1, 3]].sum()], [0.8057, 0.6550], atol=5e-5)
        both = sorted(own & set(numpy.flatnonzero(kept)))
        self.assertEqual(rows["processed, own K / processed"][1], f"{p[both].sum() / p[sorted(own)].sum():.4f}")
        # Without filters every token comes, and the ratio reaches the whole policy.
        whole = self.four(old.astype(numpy.float32), temperature=0.7)
        self.assertTrue(whole.kept.all())
        self.assertAlmostEqual((numpy.exp(whole.processed) * numpy.exp(numpy.log(p) - whole.tempered) * reward).sum(),
                               (p * reward).sum(), places=5)

    def test_options_change_what_the_page_says(self):
        base = {"temperature": 0.7, "top_p": 0.8, "prompt": [0, 1, 2, 0, 1], "seed": 1}
        logits = row()
        logits[:10] = 6 - 0.4 * numpy.arange(10)  # so that K is the prompt's tokens
        nan = logits.copy()
        nan[2] = numpy.nan
        first = int(logits.argmax())
        # For each option: the options beside it, itself, and its arguments of the step.
        changes = {
            "nan_policy": ({}, {"nan_policy": "NAN_POLICY_MASK"}, {"logits": nan}),
            "banned_token_ids": ({}, {"banned_token_ids": [first]}, {}),
            "allowed_token_ids": ({}, {"allowed_token_ids": list(range(0, WIDTH, 2))}, {}),
            "mask": ({}, {}, {"allowed": numpy.arange(WIDTH) % 3 > 0}),
            "bad_words": ({}, {"bad_words": [{"tokens": [first]}]}, {}),
            "no_repeat_ngram_size": ({}, {"no_repeat_ngram_size": 3}, {}),
            "min_tokens": ({"stop_token_ids": [first]}, {"min_tokens": 5}, {}),
            "phases": ({}, {"phases": [{"max_tokens": 0, "then": [9]}]}, {}),
            "logit_bias": ({}, {"logit_bias": [{"token": 3, "bias": 4.0}]}, {}),
            "repetition_penalty": ({}, {"repetition_penalty": 1.5}, {}),
            "frequency_penalty": ({"penalty_scope": {"frequency_counts_prompt": True}}, {"frequency_penalty": 0.5}, {}),
            "presence_penalty": ({"penalty_scope": {"frequency_counts_prompt": True}}, {"presence_penalty": 0.5}, {}),
            "penalty_scope": ({"repetition_penalty": 1.5}, {"penalty_scope": {"window": 2}}, {}),
            "dry": ({}, {"dry": {"multiplier": 2.0}}, {}),
            "temperature": ({}, {"temperature": 1.5}, {}),
            "dynamic_temperature": ({}, {"dynamic_temperature": {"range": 0.5}}, {}),
            "top_k": ({}, {"top_k": 2}, {}),
            "top_p": ({}, {"top_p": 0.5}, {}),
            "min_p": ({}, {"min_p": 0.5}, {}),
            "typical_p": ({}, {"typical_p": 0.5}, {}),
            "top_n_sigma": ({}, {"top_n_sigma": 0.5}, {}),
            "epsilon_cutoff": ({}, {"epsilon_cutoff": 0.2}, {}),
            "eta_cutoff": ({}, {"eta_cutoff": 0.5}, {}),
            "top_a": ({}, {"top_a": 1.0}, {}),
            "top_h": ({}, {"top_h": 0.5}, {}),
            "p_less": ({}, {"p_less": True}, {}),
            "min_k": ({}, {"min_k": {}}, {}),
            "xtc": ({}, {"xtc": {"probability": 1.0}}, {}),
            "mirostat": ({}, {"mirostat": {"version": 2, "tau": 1.0}}, {}),
            "min_keep": ({}, {"min_keep": 90}, {}),
            "chain": ({}, {"chain": {"preset": "PRESET_LLAMA_CPP"}}, {}),
            "quadratic_smoothing": ({}, {"quadratic_smoothing": {"factor": 1.0}}, {}),
            "adaptive_p": ({}, {"adaptive_p": {"target": 0.2}}, {}),
            "stop_token_ids": ({}, {"stop_token_ids": [first]}, {}),
            "repetition_stop": ({}, {"repetition_stop": {"repeats": 2}}, {}),
            "banned_phrases": ({}, {"banned_phrases": [{"tokens": [first]}]}, {}),
            "draw_salt": ({}, {}, {"draw_salt": 7}),
            "watermark": ({}, {"watermark": {"key": 3}}, {}),
        }
        said = {name: cells[1:] for cells in table("option | raw") for name in re.findall(r"`(\w+)`", cells[0])}
        self.assertEqual(set(said), set(changes))
        for name, (without, added, step) in changes.items():
            with self.subTest(name):
                plain = self.four(logits, **{**base, **without}).columns()
                changed = self.four(**{"logits": logits, **step}, **{**base, **without, **added}).columns()
                self.assertEqual(said[name], ["yes" if a != b else "no" for a, b in zip(plain, changed)])
        # Every option has its place on the page, or only asks for more in the answer.
        options = {field.name for field in SamplingParameters.DESCRIPTOR.fields}
        self.assertEqual(options - {*ALL, "logprob_token_ids", "entropy"} | {"mask", "draw_salt"}, set(said))


class FormulaTest(LogprobsTest):
    EDITS = {"prompt": [1, 2, 3, 1, 2], "repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.3,
             "penalty_scope": {"frequency_counts_prompt": True}, "logit_bias": [{"token": 2, "bias": 1.5}],
             "banned_token_ids": [7, 8]}

    def edited(self, logits):
        """The changes of EDITS, in f32, one rounding each."""
        f32 = numpy.float32
        changed = logits.copy()
        changed[2] += f32(1.5)
        for token, count in ((1, 2), (2, 2), (3, 1)):
            x = changed[token] * f32(1.2) if changed[token] < 0 else changed[token] * (f32(1) / f32(1.2))
            changed[token] = x + f32(-(float(f32(0.4)) * count + float(f32(0.3))))
        changed[[7, 8]] = -numpy.inf
        return changed

    def test_each_is_the_softmax_of_its_logits(self):
        filters = ({}, {"top_k": 20}, {"top_p": 0.7, "min_p": 0.01}, {"xtc": {"probability": 1.0, "threshold": 0.05}})
        for seed, temperature in itertools.product(range(20), (0.4, 1.0, 1.7)):
            logits = row(seed)
            four = self.four(logits, temperature=temperature, **filters[seed % 4], **self.EDITS)
            scaled = self.edited(logits).astype(float) / float(numpy.float32(temperature))
            tempered = log_softmax(scaled)
            self.assert_near(four.raw, log_softmax(logits))
            self.assert_near(four.tempered, tempered)
            self.assert_near(four.processed, log_softmax(scaled, four.kept))
            self.assert_near(four.mass, min(0, numpy.log(numpy.exp(tempered[four.kept]).sum())))

    def test_kept_tokens_of_a_top_p(self):
        for seed in range(20):
            logits = row(seed)
            four = self.four(logits, temperature=0.7, top_p=0.8)
            p = numpy.exp(log_softmax(logits / 0.7))
            before = numpy.array([p[p > q].sum() for q in p])
            self.assertEqual(four.kept.tolist(), (before < 0.8).tolist())

    def test_bits_are_those_of_the_verifier(self):
        for seed, options in enumerate(({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.0}, {"top_k": 12},
                                        {"temperature": 1.4, "typical_p": 0.7, "min_keep": 2},
                                        {"temperature": 0.8, "quadratic_smoothing": {"factor": 0.2}, "top_p": 0.9},
                                        {"dynamic_temperature": {"range": 0.5}, "min_p": 0.05})):
            logits = row(seed)
            four = self.four(logits, **options)
            flat = {}
            for name, value in options.items():
                parts = {NESTED[name][part]: one for part, one in value.items()} if name in NESTED else {name: value}
                flat.update(parts)
            checked = sortition_verify.answer(sortition_verify.Row(
                bits=sortition_verify.float_bits(logits), seed=1, compiled=sortition_verify.compile_options(flat)))
            for name in ("raw", "tempered", "processed"):
                bits = [getattr(checked, name).logprob(token) for token in range(WIDTH)]
                self.assertEqual(getattr(four, name).tolist(), bits, (options, name))
            self.assertEqual(int(sortition_verify.float_bits(four.mass)), checked.kept_mass()[2])

    def test_masked_tokens_are_in_no_distribution(self):
        logits = row()
        logits[[3, 4, 5]] = -numpy.inf, -65504, numpy.nan
        four = self.four(logits, nan_policy="NAN_POLICY_MASK", live_vocabulary_size=WIDTH)
        for name in ("raw", "tempered", "processed"):
            self.assertTrue(numpy.isneginf(getattr(four, name)[[3, 4, 5]]).all())
            self.assertEqual(getattr(four, f"{name}_ranks")[[3, 4, 5]].tolist(), [0, 0, 0])
        # Padding is not read: the same bits as without it.
        asks = {**ALL, "logprob_token_ids": list(range(100)), "seed": 1}
        padded, short = (self.sampler.draw(self.sampler.open(vocabulary_size=width, live_vocabulary_size=100, **asks),
                                           row()[:width]) for width in (WIDTH, 100))
        self.assertEqual(Four(padded, 100).columns(), Four(short, 100).columns())

    def test_ranks_count_within_each_distribution(self):
        logits = row()
        first, second = numpy.argsort(-logits, kind="stable")[:2]
        four = self.four(logits, banned_token_ids=[int(first)], top_k=5)
        self.assertEqual((four.raw_ranks[first], four.tempered_ranks[first], four.processed_ranks[first]), (1, 0, 0))
        self.assertEqual((four.raw_ranks[second], four.tempered_ranks[second], four.processed_ranks[second]), (2, 1, 1))
        self.assertEqual(sorted(four.processed_ranks[four.kept]), [1, 2, 3, 4, 5])
        self.assertEqual(four.processed_ranks[~four.kept].max(), 0)

    def test_given_tokens_and_drafts_have_the_same_bits(self):
        logits = row()
        four = self.four(logits, temperature=0.7, top_k=4)
        asks = {**ALL, "vocabulary_size": WIDTH, "seed": 1, "temperature": 0.7, "top_k": 4}
        kept, dropped = int(numpy.flatnonzero(four.kept)[0]), int(numpy.flatnonzero(~four.kept)[0])
        for token in (kept, dropped):
            scored = self.sampler.score(self.sampler.open(**asks), logits[None], [token])
            found = [part[0].logprob for part in (scored.raw, scored.tempered, scored.processed)]
            self.assertEqual(found, [four.raw[token], four.tempered[token], four.processed[token]])
            self.assertEqual(scored.kept_log_mass, [four.mass])
        self.assertTrue(numpy.isfinite(four.tempered[dropped]) and numpy.isneginf(four.processed[dropped]))
        verified = self.sampler.verify(self.sampler.open(**asks), numpy.stack([logits, logits]),
                                       sortition.Drafts([four.token], mode="coupled"))
        self.assertEqual(verified.tokens[0], four.token)
        found = [part[0].logprob for part in (verified.raw, verified.tempered, verified.processed)]
        self.assertEqual(found, [part[four.token] for part in (four.raw, four.tempered, four.processed)])
        self.assertEqual(verified.kept_log_mass[0], four.mass)


class IdentitiesTest(LogprobsTest):
    FILTERS = {
        "top_k": 12, "top_p": 0.8, "min_p": 0.02, "typical_p": 0.7, "top_n_sigma": 1.5, "epsilon_cutoff": 0.01,
        "eta_cutoff": 0.01, "top_a": 0.1, "top_h": 0.6, "p_less": True, "min_k": {},
        "xtc": {"probability": 1.0, "threshold": 0.05}, "mirostat": {"version": 2, "tau": 3.0},
    }

    def chains(self, *names):
        """The presets, and explicit orders: as named and reversed, with mirostat or adaptive-p at the end."""
        for preset in ("PRESET_VLLM", "PRESET_LLAMA_CPP", "PRESET_HF"):
            yield {"preset": preset}
        last = [name for name in names if name in ("mirostat", "adaptive_p")]
        others = [name for name in names if name not in last]
        for order in (others, others[::-1]):
            yield {"explicit": {"samplers": order + last}}

    def gaps(self, four):
        """Tempered less processed less the mass, of the kept tokens."""
        return four.tempered[four.kept] - four.processed[four.kept] - four.mass

    def test_kept_mass_joins_tempered_and_processed(self):
        sets = [[name] for name in self.FILTERS] + [["top_k", "top_p"], ["top_p", "min_p", "xtc"],
                                                    ["typical_p", "top_k"], ["top_n_sigma", "top_p", "mirostat"]]
        heat = ({"temperature": 0.6}, {"temperature": 1.3}, {"temperature": 0.9, "dynamic_temperature": {"range": 0.5}})
        for seed, (names, hot) in enumerate(itertools.product(sets, heat)):
            for chain, least in itertools.product(self.chains("temperature", *names), (0, 30)):
                options = {name: self.FILTERS[name] for name in names}
                four = self.four(row(seed), chain=chain, min_keep=least, **options, **hot)
                with self.subTest(names=names, hot=hot, chain=chain, min_keep=least):
                    rounded = four.tempered[four.kept], four.processed[four.kept], four.mass
                    self.assert_near(self.gaps(four), 0, rounded)
                    self.assert_sums_to_one(four)

    def assert_sums_to_one(self, four):
        for part in (four.raw, four.tempered, four.processed):
            self.assertAlmostEqual(numpy.exp(part).sum(), 1, delta=2e-6)
        self.assertAlmostEqual(numpy.exp(four.tempered[four.kept]).sum(), numpy.exp(four.mass), delta=2e-6)

    def test_smoothing_and_adaptive_p_break_it(self):
        for name, value in (("quadratic_smoothing", {"factor": 0.3}), ("adaptive_p", {"target": 0.2})):
            for chain in self.chains("temperature", "top_k", name):
                four = self.four(row(), chain=chain, temperature=0.6, top_k=12, **{name: value})
                gaps = self.gaps(four)
                self.assertGreater(numpy.abs(gaps).max(), 0.1, (name, chain))
                self.assertGreater(numpy.ptp(gaps), 0.1, (name, chain))
                self.assert_sums_to_one(four)

    def test_without_filters_tempered_has_the_bits_of_processed(self):
        for seed in range(10):
            four = self.four(row(seed), temperature=0.3 + seed / 5, logit_bias=[{"token": 1, "bias": 2.0}])
            self.assertEqual((four.tempered.tobytes(), four.mass), (four.processed.tobytes(), 0.0))
            self.assertNotEqual(four.raw.tobytes(), four.tempered.tobytes())

    def test_without_edits_raw_has_the_bits_of_tempered(self):
        for seed in range(10):
            four = self.four(row(seed), top_k=1 + seed)
            self.assertEqual(four.raw.tobytes(), four.tempered.tobytes())

    def test_temperature_0_keeps_the_first_token(self):
        for seed in range(10):
            four = self.four(row(seed), temperature=0.0, logit_bias=[{"token": 1, "bias": 2.0}], top_p=0.5)
            self.assertEqual(numpy.flatnonzero(four.kept).tolist(), [four.token])
            self.assertEqual((four.processed[four.token], four.tempered[four.token]), (0.0, four.mass))
            at_1 = self.four(row(seed), temperature=1.0, logit_bias=[{"token": 1, "bias": 2.0}])
            self.assertEqual(four.tempered.tobytes(), at_1.tempered.tobytes())

    def test_raw_by_temperature_is_no_logprob(self):
        for temperature in (0.5, 0.9, 1.1, 2.0):
            four = self.four(row(), temperature=temperature)
            self.assertGreater(abs(numpy.exp(four.raw / temperature).sum() - 1), 0.1)
            self.assertGreater(numpy.abs(four.tempered - four.raw / temperature).min(), 0.1)


if __name__ == "__main__":
    unittest.main()
