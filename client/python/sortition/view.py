"""Shows a step in a notebook."""

from __future__ import annotations

import html
import math
from typing import Callable, List, NamedTuple, Optional

from sortition._native import Draw


class Candidate(NamedTuple):
    """A token that passed every filter, with its probability among those that did."""

    token: int
    probability: float
    chosen: bool


class StepView:
    """The chosen token and the likeliest tokens that passed every filter.

    Made from a Draw of a sequence that asks for `processed_logprobs={"top": n}`; with `kept_set={"count": True}` it
    also says how many passed. `text_of` turns a token id into the text to show.
    """

    def __init__(self, draw: Draw, text_of: Callable[[int], str] = str):
        if draw.processed is None:
            raise ValueError("the sequence asks for no processed_logprobs, so there are no probabilities to show")
        self.draw = draw
        self._text_of = text_of

    @property
    def kept_count(self) -> Optional[int]:
        return self.draw.kept_count

    @property
    def candidates(self) -> List[Candidate]:
        """The first tokens in order, and the chosen token, which is last if it is not among them."""
        logprobs = self.draw.processed
        rows = [Candidate(token, math.exp(logprob), token == self.draw.token)
                for token, logprob in zip(logprobs.top_tokens, logprobs.top_logprobs)]
        if not any(row.chosen for row in rows):
            rows.append(Candidate(self.draw.token, math.exp(logprobs.logprob), True))
        return rows

    def __repr__(self) -> str:
        lines = [f"{'*' if row.chosen else ' '} {row.token:>8} {row.probability:8.4f} {self._text_of(row.token)}"
                 for row in self.candidates]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr{' style=font-weight:bold' if row.chosen else ''}><td>{'&#9654;' if row.chosen else ''}</td>"
            f"<td>{row.token}</td><td>{html.escape(self._text_of(row.token))}</td>"
            f"<td><div style='background:#4a90d9;height:.8em;width:{100 * row.probability:.1f}px'></div></td>"
            f"<td>{row.probability:.4f}</td></tr>"
            for row in self.candidates)
        return f"<table><caption>{html.escape(self._title())}</caption>{rows}</table>"

    def _title(self) -> str:
        kept = "" if self.kept_count is None else f", {self.kept_count} tokens kept"
        return f"token {self.draw.token}, rank {self.draw.processed.rank}{kept}"
