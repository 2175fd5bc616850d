"""Compact rows (kernels/law/COMPACT.md): a producer's statement of a row of logits in their place."""

from typing import Any, Dict, Sequence

from sortition_verify import chain as stages
from sortition_verify.functions import UNIT_TEMPERATURE, Scale, total, weights
from sortition_verify.row import Row, in_order, raw_logits


def statement(row: Row, count: int, named: Sequence[int] = ()) -> Dict[str, Any]:
    """States the row's first `count` tokens, the tokens `named` that are not among them, and every sum.

    Masks and edits of the row are not part of it. Raises RowError if a logit fails the row.
    """
    bits = raw_logits(row)
    order = in_order(bits)
    first = [[int(token), int(bits[token])] for token in order[:count]]
    listed = {token for token, _ in first}
    stated: Dict[str, Any] = {"first": first, "is_whole": len(first) == len(order),
                              "others": [[token, int(bits[token])] for token in sorted(named) if token not in listed]}
    if len(order):
        def sum_at(temperature: Any) -> str:
            return str(total(weights(Scale(bits[order[0]], temperature).distances(bits[order]))))

        stated["unit_sum"] = sum_at(UNIT_TEMPERATURE)
        for number, *operands in row.compiled.stages():
            if number == stages.TEMPERATURE:
                multiplier, exponent, window = operands[:3]
                stated["sum"] = sum_at((multiplier, stages.signed(exponent, 32) if exponent >= 0 else exponent, window))
    return stated
