"""Thinking budgets of vLLM's requests under the runner of generation 1: which token a spent budget forces, and where.

vLLM counts on its own there, and its count depends on how many drafts a step has. Here a text decides alone, as under
the runner of generation 2, so that it is the same with speculation and without.
"""

from __future__ import annotations

from typing import List, Optional, Sequence


class ThinkingBudget:
    """Counts a request's tokens after the last start of thinking. `start` and `end` are markers of several tokens."""

    def __init__(self, budget: int, start: Sequence[int], end: Sequence[int]):
        self._budget, self._start_marker, self._end_marker = budget, list(start), list(end)
        self._forget()

    def _forget(self) -> None:
        self._scanned = 0
        self._started = self._ended = -1  # lengths of the text after its last marker of each kind

    def forced(self, text: List[int], drafts: Sequence[int] = ()) -> List[Optional[int]]:
        """Returns the only token allowed after `text` and after each draft, None where all are.

        Reads what the text has gained since the last call. A shorter text than the last one is read again.
        """
        if len(text) < self._scanned:
            self._forget()
        whole = [*text, *drafts]
        started, ended = self._started, self._ended
        forced = []
        for length in range(min(self._scanned, len(text) - 1) + 1, len(whole) + 1):
            if self._ends_with(whole, length, self._start_marker):
                started = length
            if self._ends_with(whole, length, self._end_marker):
                ended = length
            if length == len(text):
                self._scanned, self._started, self._ended = length, started, ended
            if length >= len(text):
                forced.append(self._next(whole, length) if -1 < started > ended and length - started >= self._budget
                              else None)
        return forced

    def _next(self, whole: List[int], length: int) -> int:
        """Returns the token of the end's marker that comes next."""
        begun = next((count for count in range(len(self._end_marker) - 1, 0, -1)
                      if self._ends_with(whole, length, self._end_marker[:count])), 0)
        return self._end_marker[begun]

    @staticmethod
    def _ends_with(whole: List[int], length: int, marker: List[int]) -> bool:
        return length >= len(marker) and whole[length - len(marker):length] == marker
