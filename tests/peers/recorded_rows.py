"""Rows for peers, and the form in which their answers are recorded."""

import json
import random
import struct

from typing import Dict, List, Optional

Tokens = List[int]


def bits_of(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def float_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def rows() -> Dict[str, List[float]]:
    """f32 logits by name. As a model's; of few tokens that count; of none that does; of bf16, with ties."""
    chance = random.Random(20251122)

    def row(vocabulary: int, spread: float, leaders: float, mask: int = 0xFFFFFFFF) -> List[float]:
        logits = []
        for _ in range(vocabulary):
            x = spread * chance.gauss(0, 1) + (leaders if chance.random() < 0.03 else 0.0)
            logits.append(float_of(bits_of(x) & mask))
        return logits

    return {
        "model": row(320, 2.0, 3.0),
        "peaked": row(96, 3.0, 9.0),
        "flat": row(200, 0.1, 0.0),
        "bf16": row(256, 1.5, 4.0, 0xFFFF0000),
    }


def history(vocabulary: int) -> Tokens:
    """A text that repeats itself, for rows of this vocabulary."""
    chance = random.Random(vocabulary)
    tokens = [chance.randrange(12) * 5 % vocabulary for _ in range(40)]
    return tokens + tokens[8:20] + tokens[3:9] + tokens[8:13]


FILTERS = {"top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "epsilon_cutoff", "eta_cutoff", "top_h", "xtc"}


def is_askable(row: List[float], options: dict) -> bool:
    """True if peers agree on the row: a tie cut one way or the other by one filter moves the cuts of the next."""
    return len(set(row)) == len(row) or len(FILTERS & options.keys()) < 2


class Recorder:
    def __init__(self, peer: str, logprobs: str) -> None:
        self.head = {"peer": peer, "logprobs": logprobs}
        self.cases: List[dict] = []

    def add(self, row: str, parameters: dict, logprobs: Dict[int, float], drawn: Optional[Tokens] = None) -> None:
        """`parameters` as the contract names them; `logprobs` of the tokens that the peer keeps, which has drawn
        `drawn` from the same row before."""
        kept = " ".join(f"{token}:{bits_of(x):08x}" for token, x in sorted(logprobs.items()))
        self.cases.append({"row": row, "parameters": parameters, "drawn": drawn or [], "kept": kept})

    def write(self, path: str) -> None:
        logits = {name: " ".join(f"{bits_of(x):08x}" for x in row) for name, row in rows().items()}
        histories = {name: history(len(row)) for name, row in rows().items()}
        lines = ",\n".join(json.dumps(case) for case in self.cases)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'{{"head": {json.dumps(self.head)},\n"rows": {json.dumps(logits, indent=0)},\n')
            file.write(f'"histories": {json.dumps(histories)},\n')
            file.write(f'"cases": [\n{lines}\n]}}\n')
