"""Kept sets of a batch in CSR form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy

from sortition import _native
from sortition.step import Result


@dataclass(frozen=True)
class KeptSets:
    """Token ids of several kept sets, in two arrays: set i is `ids[offsets[i]:offsets[i + 1]]`, ascending.

    `ids` are int32, `offsets` int64, one more than there are sets.
    """

    ids: numpy.ndarray
    offsets: numpy.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> numpy.ndarray:
        """Returns a view of set `index`."""
        place = range(len(self))[index]
        return self.ids[self.offsets[place]:self.offsets[place + 1]]

    @property
    def counts(self) -> numpy.ndarray:
        return numpy.diff(self.offsets)

    def torch(self) -> Tuple[Any, Any]:
        """Returns `ids` and `offsets` as torch tensors in the same memory."""
        import torch  # not a dependency of the package
        return torch.from_numpy(self.ids), torch.from_numpy(self.offsets)

    @classmethod
    def join(cls, parts: Sequence["KeptSets"]) -> "KeptSets":
        """Returns the sets of all parts in order."""
        starts = numpy.cumsum([0] + [len(part.ids) for part in parts])
        return cls(numpy.concatenate([part.ids for part in parts]),
                   numpy.concatenate([[0]] + [part.offsets[1:] + start for part, start in zip(parts, starts)]))


def kept_sets(results: Sequence[Result]) -> KeptSets:
    """Returns the kept sets of a step's results, in order: one for a Draw, one for each token of a Verify or a Score.

    An Error has an empty set. Raises ValueError if a sequence was opened without `kept_set={"tokens": True}`. The
    arrays are filled by native code, without a Python object for a row or a token.
    """
    return KeptSets(*_native.kept_sets(list(results)))
