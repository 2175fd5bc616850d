"""Grammar masks as the contract has them."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy


def pack_mask(allowed: Any) -> numpy.ndarray:
    """Booleans, one a token, as words of 32 bits, least significant bit first; of a matrix, a mask for each row."""
    flags = numpy.asarray(allowed)
    if flags.dtype != numpy.bool_ or flags.ndim not in (1, 2):
        raise TypeError(f"allowed: a vector of booleans, or a matrix, not {flags.dtype} of shape {flags.shape}")
    packed = numpy.packbits(flags, axis=-1, bitorder="little")
    room = [(0, 0)] * (flags.ndim - 1) + [(0, -packed.shape[-1] % 4)]
    return numpy.ascontiguousarray(numpy.pad(packed, room)).view(numpy.uint32)


def packed_masks(masks: Optional[Sequence[Any]]) -> Optional[List[Any]]:
    """One for each row: None, packed words, or booleans, which are packed here."""
    if masks is None:
        return None
    return [pack_mask(mask) if mask is not None and "bool" in str(mask.dtype) else mask for mask in masks]
