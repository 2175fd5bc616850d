"""Sequences in process have the published answers to histories (docs/law-1.md)."""

import json
import os
import pathlib
import unittest

import numpy
import sortition
import sortition.local
from google.protobuf import json_format
from sortition.v1.parameters_pb2 import SamplingParameters

VECTORS = pathlib.Path(os.environ["TEST_SOURCE_DIR"]) / "kernels/law/vectors"
ROWS = [row for name in ("law_1_histories.json", "law_1_marks.json")
        for row in json.loads((VECTORS / name).read_text(encoding="utf-8"))["rows"]]
HISTORIES = [item for item in ROWS if "history" in item]


def drawn(item):
    history, row = item["history"], item["row"]
    sampler, stream = sortition.local.Sampler(), history["stream"]
    sequence = sampler.open(vocabulary_size=row["vocabulary"], prompt=history["prompt"], seed=int(row["noise"]["seed"]),
                            choice_index=stream & 0xFFFF,
                            parameters=json_format.ParseDict(history["parameters"], SamplingParameters()))
    if history["output"]:
        sequence.append(history["output"])
    logits = numpy.array(row["logits"]["elements"], numpy.uint32).view(numpy.float32)
    return sampler.draw(sequence, logits, draw_salt=stream >> 16)


class PublishedTest(unittest.TestCase):
    def test_histories_have_their_answers(self):
        for item in HISTORIES:
            name, answer = item["row"]["name"], item["row"]["answer"]
            if "error" in answer:
                with self.assertRaises(sortition.Error) as caught:
                    drawn(item)
                self.assertEqual(caught.exception.reason, "NO_LIVE_TOKEN", name)
                continue
            got = drawn(item)
            self.assertEqual(got.token, answer["token"], name)
            for kind in ("raw", "processed"):
                logprob = numpy.float32(getattr(got, kind).logprob).view(numpy.uint32)
                self.assertEqual((int(logprob), getattr(got, kind).rank),
                                 (answer[kind]["chosen_logprob_bits"], answer[kind]["rank"]), name)
            if "kept_tokens" in answer:
                self.assertEqual(got.kept_tokens, [token for token, _ in answer["kept_tokens"]], name)

    def test_another_history_has_another_answer(self):
        changed = 0
        for item in HISTORIES:
            if item["history"]["output"] and "error" not in item["row"]["answer"]:
                item = json.loads(json.dumps(item))
                item["history"]["output"].pop()
                changed += drawn(item).token != item["row"]["answer"]["token"]
        self.assertGreater(changed, len(HISTORIES) // 4)


if __name__ == "__main__":
    unittest.main()
