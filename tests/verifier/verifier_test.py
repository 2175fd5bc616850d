"""An implementation of the law that shares no code with the kernels, in numpy.

Published vectors are frozen: their files never change by a byte, and reference and CPU kernels answer them as ever.
"""

import copy
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
VECTORS = SOURCE / "kernels/law/vectors"
ROWS = os.environ["TEST_VERIFIER_ROWS"]
# Law 1. A file that differs from these is another law's.
FROZEN = {
    "golden_outputs.json": "e2b9546f7b8997dc9d730c3be5a88b25ed03595051b9720875d19b885e9230bc",
    "law_1_filters.json": "c4172d7f8c5143751ee8178fd6dde6b5454bc4dcd565067199fd73c2a33a5d5a",
    "law_1_histories.json": "2378adbc9c39f3ae1a87f020cf046456dfc58d164efda4826a65201020ec6445",
    "law_1_marks.json": "01fb8b97487803c3c5584586906e48eedab21d8b4b66381692ecdddb3e99cbad",
    "law_1_records.json": "0e652774a8e97875405684f43e7369e0c19c3305cc6711c776e0781f3d593336",
    "law_1_rows.json": "9b12ea3528e0faecd438cbed471fcddd0852c3cf40f47b8ee1dc5cc64101fab0",
}
RANDOM_ROWS = 300

sys.path.insert(0, str(SOURCE / "client/verify"))

import many_rows  # noqa: E402
import sortition_verify as verify  # noqa: E402
from sortition_verify import functions, options, places, row as row_law, vectors  # noqa: E402


def published(name):
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))


def named_options(row):
    """The options of a row of law_1_rows.json, and their order, if its name has them; else None."""
    if not row["name"].startswith("{"):
        return None
    given = json.loads(row["name"].replace("'", '"'))
    return given, options.ORDERS[given.pop("order")]


class FrozenTest(unittest.TestCase):
    def test_published_files_are_those_of_law_1(self):
        for name, digest in FROZEN.items():
            self.assertEqual(hashlib.sha256((VECTORS / name).read_bytes()).hexdigest(), digest, name)

    def test_reference_and_cpu_kernels_answer_as_published(self):
        for name in ("law_1_rows.json", "law_1_filters.json", "law_1_histories.json", "law_1_marks.json",
                     "law_1_records.json"):
            checked = subprocess.run([ROWS, "check", str(VECTORS / name)], capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stdout[-2000:] + checked.stderr)

    def test_a_changed_answer_is_found(self):
        file = published("law_1_rows.json")
        file["rows"] = file["rows"][:3]
        file["rows"][1]["answer"]["token"] += 1
        with tempfile.NamedTemporaryFile("w", suffix=".json") as changed:
            json.dump(file, changed)
            changed.flush()
            checked = subprocess.run([ROWS, "check", changed.name], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 1)
        self.assertIn("the reference has another answer", checked.stdout)

    def test_every_option_of_a_history_is_published(self):
        items = [item["history"]["parameters"] for item in published("law_1_histories.json")["rows"]
                 if "history" in item]
        self.assertLessEqual({"frequency_penalty", "presence_penalty", "repetition_penalty", "penalty_scope", "dry",
                              "no_repeat_ngram_size", "bad_words", "min_tokens", "stop_token_ids", "phases",
                              "logit_bias", "allowed_token_ids", "banned_token_ids", "watermark"},
                             {name for item in items for name in item})

    def test_repeated_contexts_are_published(self):
        marked, own = 0, 0
        for item in published("law_1_marks.json")["rows"]:
            history, mark = item["history"], item["history"]["parameters"]["watermark"]
            tokens, width = history["prompt"] + history["output"], mark["context_width"]
            end = tokens[len(tokens) - width:]
            repeats = len(tokens) > width and any(tokens[i:i + width] == end for i in range(len(tokens) - width))
            is_own = repeats and mark.get("skip_repeated_contexts", False)
            # The noise of a mark stands at position 0.
            self.assertEqual(item["row"]["noise"]["position"], len(tokens) if is_own else 0)
            own, marked = own + is_own, marked + (not is_own)
        self.assertGreater(own, 40)
        self.assertGreater(marked, 20)

    def test_records_of_every_task_and_stage_are_published(self):
        rows = [row for row in published("law_1_records.json")["rows"] if "error" not in row["answer"]]
        self.assertGreaterEqual(len(rows), 100)
        for ask in ("tempered", "kept_log_mass"):
            asking = [row for row in rows if ask in row["compiled"]["asks"]]
            self.assertTrue(all(ask in row["answer"] for row in asking))
            self.assertEqual({stage[0] for row in asking for stage in row["compiled"].get("chain", [])},
                             set(range(17)), ask)
            for task in ("score", "verify"):
                self.assertTrue(any(task in row for row in asking), (ask, task))
        ranks = [row["answer"]["race_place"][0] for row in rows if "race_place" in row["compiled"]["asks"]]
        self.assertIn(0, ranks)
        self.assertIn(1, ranks)
        self.assertGreater(max(ranks), 1)

    def test_every_option_stage_and_error_is_published(self):
        rows = [row for name in ("law_1_rows.json", "law_1_filters.json", "golden_outputs.json")
                for row in published(name)["rows"]]
        named = {name for row in rows if named_options(row) for name in named_options(row)[0]}
        self.assertEqual(named, set(options.DEFAULTS))
        for task in ("score", "verify", None):
            of_task = [row for row in rows if (task in row if task else not {"score", "verify"} & set(row))]
            self.assertEqual({stage[0] for row in of_task for stage in row["compiled"].get("chain", [])},
                             set(range(18)), task)
        self.assertEqual({row["answer"].get("error") for row in rows},
                         {None, "nan", "logit_too_large", "no_live_token", "draft_no_probability", "draft_sum",
                          "draft_impossible"})


class NumpyTest(unittest.TestCase):
    def test_published_rows(self):
        for name in FROZEN:
            for row in published(name)["rows"]:
                self.assertEqual(vectors.differences(row), [], row.get("row", row)["name"])

    def test_options_compile_as_published(self):
        for row in published("law_1_rows.json")["rows"] + published("law_1_filters.json")["rows"]:
            if named_options(row):
                compiled = verify.compile_options(*named_options(row))
                wanted = vectors.compiled_of(row)
                if wanted.chain:
                    wanted.temperature = 1.0
                self.assertEqual(compiled, wanted, row["name"])
                self.assertEqual(str(verify.first_state(compiled.chain)), row.get("sampler_state", "0"), row["name"])

    def test_published_functions(self):
        given = published("golden_outputs.json")["functions"]
        array = np.array
        for bits, wanted in given["canonical"]:
            self.assertEqual(functions.canonical(array([bits], np.uint32))[0], wanted)
        for bits, wanted in given["key_of_canonical"]:
            key = functions.sort_keys(functions.canonical(array([bits], np.uint32)))[0]
            self.assertEqual(key, wanted)
        for t, wanted in given["weight"]:
            self.assertEqual(functions.weight(t), int(wanted))
        for weight_sum, units, wanted in given["top_p_threshold"]:
            self.assertEqual(functions.top_p_threshold(int(weight_sum), units), int(wanted))
        for x, wanted in given["log2_raw"]:
            self.assertEqual(functions.log2_raw(int(x)), int(wanted))
            self.assertEqual(functions.log2_raws(array([int(x)], np.uint64))[0], int(wanted))
        for word, owner, wanted in given["word_owner_neg_log2"]:
            self.assertEqual(int(word) & 63, owner)
            self.assertEqual(functions.neg_log2(functions.uniforms(array([int(word)], np.uint64)))[0], int(wanted))
        for low, high, position, stream, token, *_, wanted in given[
                "seed_low_seed_high_position_stream_id_group_word_token_word_log"]:
            log = functions.noise_logs(array([token], np.uint64), ((low, high), position, stream))[0]
            self.assertEqual(log, int(wanted))
        for bits, wanted in given["min_p_distance"]:
            self.assertEqual(options.threshold_distance(functions.float_of(bits)), wanted)
        for temperature, first, x, e0, shift, wanted in given["temperature_max_x_e0_shift_distance"]:
            scale = functions.Scale(first, options.temperature_constants(functions.float_of(temperature)))
            self.assertEqual((scale.e0, scale.shift), (e0, shift))
            self.assertEqual(scale.distances(array([x], np.uint32))[0], wanted)

    def test_a_wrong_history_or_compact_row_is_found(self):
        items = published("law_1_histories.json")["rows"]
        marked = next(item for item in items if item.get("history", {}).get("parameters", {}).get("watermark"))
        compact = next(item for item in items if item.get("compact", {}).get("others"))
        self.assertEqual(vectors.differences(marked) + vectors.differences(compact), [])
        marked["history"]["output"][-1] ^= 1
        self.assertIn(".noise.seed", "".join(vectors.differences(marked)))
        compact["compact"]["others"][0][1] ^= 1
        self.assertIn(".compact.others", "".join(vectors.differences(compact)))

    def test_a_wrong_record_is_found(self):
        row = next(row for row in published("law_1_records.json")["rows"]
                   if {"tempered", "kept_log_mass", "race_place"} <= row["answer"].keys())
        for name, at in (("tempered", "weight_sum"), ("kept_log_mass", 2), ("race_place", 0)):
            wrong = copy.deepcopy(row)
            value = wrong["answer"][name][at]
            wrong["answer"][name][at] = str(int(value) + 1) if isinstance(value, str) else value + 1
            self.assertIn("." + name, vectors.differences(wrong)[0])

    def test_a_wrong_answer_is_found(self):
        row = published("law_1_rows.json")["rows"][1]
        self.assertEqual(vectors.differences(row), [])
        for path in (("token",), ("raw", "chosen_logprob_bits"), ("processed", "rank")):
            wrong = copy.deepcopy(row)
            at = wrong["answer"]
            for name in path[:-1]:
                at = at[name]
            at[path[-1]] += 1
            self.assertIn("." + ".".join(path), vectors.differences(wrong)[0])

    def test_command_reads_files_and_lines(self):
        command = [sys.executable, "-m", "sortition_verify"]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")}
        row = json.dumps(published("law_1_rows.json")["rows"][1])
        held = subprocess.run([*command, "-"], input=row, env=environment, capture_output=True, text=True)
        self.assertEqual((held.returncode, held.stdout), (0, "1 rows, 0 differ\n"))
        nothing = subprocess.run([*command, "-"], input="", env=environment, capture_output=True, text=True)
        self.assertEqual((nothing.returncode, nothing.stdout), (1, "0 rows, 0 differ\n"))


class RandomRowsTest(unittest.TestCase):
    def test_verifier_equals_the_reference(self):
        rows = many_rows.made(RANDOM_ROWS, 20261123, 70)
        self.assertEqual(rows.count("\n"), RANDOM_ROWS)
        said = many_rows.says(rows)
        self.assertTrue(many_rows.hold(said, RANDOM_ROWS), said)

    def test_many_rows_at_once_equal_the_reference(self):
        """Each random row, and others that differ from it in elements, edits, masks and noise alone."""
        random, compared, met = np.random.default_rng(20261128), 0, set()
        for line in many_rows.made(240, 20261128, 70).splitlines():
            row = json.loads(line)
            if {"score", "verify"} & set(row) or "elements" not in row["logits"]:
                continue
            rows = []
            for _ in range(7):
                random.shuffle(row["logits"]["elements"])
                row["noise"] = {"seed": str(random.integers(1 << 62)), "position": int(random.integers(1 << 20)),
                                "stream": int(random.integers(1 << 16))}
                if "sampler_state" in row:
                    row["sampler_state"] = str(int(row["sampler_state"]) ^ int(random.integers(1 << 20)))
                rows.append(copy.deepcopy(row))
            answers = many_rows.answered(rows)
            count = self.check_many([json.loads(answer) for answer in answers.splitlines()])
            compared += count
            met |= {stage[0] for stage in row["compiled"].get("chain", []) if count > 1}
        self.assertGreater(compared, 600)
        self.assertEqual(met, set(range(18)))

    def check_many(self, rows):
        """Compares rows under one chain with their answers; returns their number."""
        rows = [row for row in rows if "error" not in row["answer"]]
        if not rows:
            return 0
        given = [vectors.row_of(row) for row in rows]
        bits = np.stack([row_law.changed_logits(row, row_law.raw_logits(row)) for row in given])
        low, high = (np.array([row.seed >> shift & 0xFFFFFFFF for row in given], np.uint64) for shift in (0, 32))
        position = np.array([row.position for row in given], np.uint64)
        stream = np.array([row.stream for row in given], np.uint64)
        state = np.array([row.state for row in given], object)
        reached, after = places.places_of(given[0].compiled, bits, ((low, high), position, stream), state)
        tokens = np.array([row["answer"]["token"] for row in rows])
        self.assertEqual(reached.draws().tolist(), tokens.tolist(), rows[0]["name"])
        chain = given[0].compiled.chain
        states = after(tokens) if chain and chain[-1][0] in (14, 15, 16) else [0] * len(rows)
        logprobs, counts = reached.logprobs(tokens), reached.kept_counts()
        for row, one, logprob, count, state in zip(rows, given, logprobs, counts, states):
            answer = row["answer"]
            self.assertEqual(str(state), answer.get("sampler_state", "0"), row["name"])
            if "kept" in answer:
                self.assertEqual(count, answer["kept"], row["name"])
            if "processed" in answer:
                self.assertEqual(logprob, answer["processed"]["chosen_logprob_bits"], row["name"])
        return len(rows)

    def test_random_histories_compact_rows_and_records(self):
        for task in (["histories", "200", "20261123"], ["marks", "200", "20261123"], ["compact", "200", "20261123"],
                     ["records", "300", "20261123", "40"]):
            rows = subprocess.run([ROWS, *task], capture_output=True, text=True, check=True).stdout
            said = many_rows.says(rows)
            self.assertTrue(many_rows.hold(said, rows.count("\n")), f"{task[0]}: {said}")

    def test_a_wrong_history_is_found(self):
        rows = subprocess.run([ROWS, "histories", "20", "7"], capture_output=True, text=True, check=True).stdout
        self.assertTrue(many_rows.hold(many_rows.says(rows), 20))
        for place in ('"stream": ', '"output": ['):
            wrong = rows.replace(place, place + ("9" if place.endswith(" ") else "1, "), 1)
            self.assertFalse(many_rows.hold(many_rows.says(wrong), 20), place)

    def test_a_wrong_row_among_many_is_found(self):
        rows = many_rows.made(20, 7, 30).replace('"answer": {"token": ', '"answer": {"token": 4', 1)
        self.assertFalse(many_rows.hold(many_rows.says(rows), 20))


if __name__ == "__main__":
    unittest.main()
