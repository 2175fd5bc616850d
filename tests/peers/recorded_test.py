"""Compares the law's reference with peers' recorded answers.

    recorded_test.py ROW_ANSWERS [FOLDER]

Kept sets must be equal. Where they are not, either only tokens of equal logits differ, whose order is the peer's
own, or moving every threshold by a hundred-thousandth explains it: peers compute in f32. Logprobs of equal sets must
agree to 1e-5, those of unlikely tokens to two parts in a million. record_*.py, beside this, write the records;
`./dev test engines` makes them anew and compares those.
"""

import json
import os
import subprocess
import sys
from typing import Dict, Iterator, List, Tuple

from recorded_rows import float_of

SLACK = 1e-5
MOST_EXPLAINED = 2  # rows of a record, either way
LOGPROB_ERROR = 1e-5
LOGPROB_RELATIVE_ERROR = 2e-6
THRESHOLDS = ("top_p", "min_p", "typical_p", "top_n_sigma", "epsilon_cutoff", "eta_cutoff", "top_h")
NAMED_THRESHOLDS = (("xtc", "threshold"), ("mirostat", "tau"))

Kept = Dict[int, float]


def moved(parameters: dict, slack: float) -> dict:
    other = json.loads(json.dumps(parameters))
    for name in THRESHOLDS:
        if name in other:
            other[name] = min(1 - 1e-9, other[name] * (1 + slack)) if other[name] < 1 else other[name] * (1 + slack)
    for name, part in NAMED_THRESHOLDS:
        if name in other:
            other[name][part] *= 1 + slack
    return other


class Record:
    def __init__(self, path: str, program: str) -> None:
        with open(path, encoding="utf-8") as file:
            self.__dict__.update(json.load(file))
        self.program = program
        self.logits = {name: [float_of(int(x, 16)) for x in row.split()] for name, row in self.rows.items()}

    def answers(self, cases: List[dict], slack: float) -> List[Kept]:
        lines = []
        for case in cases:
            history = self.histories[case["row"]]
            opening = {
                "request_id": "recorded",
                "epoch": 1,
                "law_version": 1,
                "vocabulary_size": len(self.logits[case["row"]]),
                "parameters": moved(case["parameters"], slack),
                "history": {"tokens": history, "prompt_length": len(history)},
            }
            drawn = " ".join(str(token) for token in case["drawn"])
            lines.append("\t".join((json.dumps(opening), self.rows[case["row"]], drawn)))
        text = "".join(line + "\n" for line in lines)
        run = subprocess.run([self.program], input=text, stdout=subprocess.PIPE, text=True, check=True)
        answers = [{int(i): x for i, x in json.loads(line).items()} for line in run.stdout.splitlines()]
        assert len(answers) == len(cases)
        return answers

    def judge(self) -> List[str]:
        cases = self.cases
        failures = []
        ours = self.answers(cases, 0)
        either = list(zip(self.answers(cases, -SLACK), self.answers(cases, SLACK)))
        tied = rounded = 0
        largest = 0.0
        for case, kept, others in zip(cases, ours, either):
            theirs = {int(i): float_of(int(x, 16)) for i, x in pairs(case["kept"])}
            logits = self.logits[case["row"]]
            if kept.keys() != theirs.keys():
                if sorted(logits[i] for i in kept) == sorted(logits[i] for i in theirs):
                    tied += 1
                elif any(theirs.keys() == other.keys() for other in others):
                    rounded += 1
                else:
                    failures.append(f"{case['row']}, {case['parameters']}: {sorted(kept.keys() ^ theirs.keys())[:9]}")
                continue
            for token, logprob in theirs.items():
                scale = max(1.0, -logprob * LOGPROB_RELATIVE_ERROR / LOGPROB_ERROR)
                error = abs(kept[token] - logprob) / scale
                if error > LOGPROB_ERROR:
                    failures.append(f"{case['row']}, {case['parameters']}: token {token}: {kept[token]}, {logprob}")
                    break
                largest = max(largest, error)
        print(f"{self.head['peer']}: {len(cases)} rows; {tied} differ by ties at a cut, {rounded} by rounding there; "
              f"logprobs within {largest:.2g}")
        if tied > MOST_EXPLAINED or rounded > MOST_EXPLAINED or len(cases) < 60:
            failures.append("too many rows differ, or there are too few")
        return failures


def pairs(text: str) -> Iterator[Tuple[str, ...]]:
    return (tuple(pair.split(":")) for pair in text.split())


def main() -> int:
    folder = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded")
    failures = []
    for name in ("transformers", "llama_cpp"):
        failures += Record(os.path.join(folder, f"{name}.json"), sys.argv[1]).judge()
    for failure in failures[:20]:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
