"""Drafts of a sequence's next tokens, to be verified together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

from sortition.describe import token_list


@dataclass(frozen=True)
class Drafts:
    """What a drafter proposes. A step with it takes a row of logits, and a mask, for each draft and one more.

    `mode` is "coupled" (the text is that of no speculation, whatever the drafter), "rejection" (tokens are distributed
    as without speculation) or "greedy" (for temperature 0). `parents` make a tree of the drafts: the index of each
    one's parent, which comes before it, or -1. For rejection `probabilities` are the drafter's, a matrix [tokens,
    vocabulary], or `sparse_probabilities` name those that are not 0, a mapping for each draft; without either the
    drafts were certain. `return_probabilities` asks for the target's, after every filter.
    """

    tokens: Any
    mode: str = "coupled"
    parents: Optional[Any] = None
    probabilities: Optional[Any] = None
    sparse_probabilities: Sequence[Mapping[int, float]] = ()
    return_probabilities: bool = False

    def __post_init__(self) -> None:
        # Plain lists, as the native module reads them.
        object.__setattr__(self, "tokens", token_list(self.tokens))
        if self.parents is not None:
            object.__setattr__(self, "parents", token_list(self.parents))
        object.__setattr__(self, "sparse_probabilities",
                           [(list(draft.keys()), list(draft.values())) for draft in self.sparse_probabilities])


def scored_lists(scored: Optional[Sequence[Any]]) -> Optional[list]:
    """One for each row: None, or the tokens to be scored."""
    return None if scored is None else [None if tokens is None else token_list(tokens) for tokens in scored]
