"""Grammar masks as the contract has them."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy


def pack_mask(allowed: Any) -> numpy.ndarray:
    """A vector of booleans, one a token, as words of 32 bits, least significant bit first."""
    flags = numpy.asarray(allowed)
    if flags.dtype != numpy.bool_ or flags.ndim != 1:
        raise TypeError(f"allowed: a vector of booleans, not {flags.dtype} of shape {flags.shape}")
    packed = numpy.packbits(flags, bitorder="little")
    return numpy.pad(packed, (0, -packed.size % 4)).view(numpy.uint32)


def packed_masks(masks: Optional[Sequence[Any]]) -> Optional[List[Any]]:
    """One for each row: None, packed words, or booleans, which are packed here."""
    if masks is None:
        return None
    return [pack_mask(mask) if mask is not None and "bool" in str(mask.dtype) else mask for mask in masks]
