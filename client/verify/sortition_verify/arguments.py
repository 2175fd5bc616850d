"""Values and files of the commands' options. One that is wrong raises SystemExit with the option and the value."""

import base64
import json
import re
import zipfile
from typing import Any, Dict, List, NoReturn

import numpy as np

from sortition_verify.functions import widen

PUBLIC_KEY = bytes.fromhex("302a300506032b6570032100")  # the bytes before the 32 of the key in a PEM file
FORMS = {"float32": "f32", "float16": "f16", "uint16": "bf16"}


def plain(text: str) -> str:
    """Text as printable ASCII, without quotes: a log may take a file's raw name for a command."""
    return ascii(text)[1:-1]


def refuse(option: str, value: str, why: object) -> NoReturn:
    raise SystemExit(f"{option}{'=' * bool(option)}{plain(value)}: {plain(str(why))[:300]}")


def text_of(option: str, path: str) -> str:
    """A file of text."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        refuse(option, path, error)


def lines_of(option: str, path: str) -> List[str]:
    return text_of(option, path).split("\n") if path else []


def keys_of(path: str) -> List[bytes]:
    """The public keys of a file: PEM of Ed25519, or 64 hexadecimal digits a line."""
    text, found = text_of("--keys", path), []
    try:
        found = [base64.b64decode(body)
                 for body in re.findall("-----BEGIN PUBLIC KEY-----(.*?)-----END", text, re.DOTALL)]
        found = found or [PUBLIC_KEY + bytes.fromhex(line) for line in text.split()]
    except ValueError:
        found = []
    if not found or any(len(key) != 44 or not key.startswith(PUBLIC_KEY) for key in found):
        refuse("--keys", path, "no public keys of Ed25519, as PEM or in hexadecimal")
    return [key[-32:] for key in found]


def array_of(option: str, path: str) -> Any:
    """The array of a .npy file, little-endian."""
    try:
        array = np.load(path, allow_pickle=False)
    except (EOFError, MemoryError, OverflowError, ValueError, zipfile.BadZipFile) as error:
        refuse(option, path, f"no .npy file: {error}")
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        refuse(option, path, "no array with dimensions")
    return array.astype(array.dtype.newbyteorder("<"))


def rows_of(options: List[str]) -> Dict[int, Any]:
    """Rows by position, as f32 bits, of options POSITION=FILE.npy: float32, float16, or bfloat16 as uint16."""
    rows: Dict[int, Any] = {}
    for word in options:
        place, _, path = word.partition("=")
        if not re.fullmatch("[0-9]{1,10}", place) or int(place) >= 1 << 32 or not path:
            refuse("--row", word, "not POSITION=FILE.npy")
        if int(place) in rows:
            refuse("--row", word, "the position has a row already")
        row = array_of(f"--row={place}", path)
        if row.dtype.name not in FORMS or row.size != row.shape[-1]:
            refuse("--row", word, f"{row.dtype.name} of shape {row.shape}; one row of float32, float16 or uint16 only")
        rows[int(place)] = widen(row.reshape(-1).view(f"<u{row.itemsize}"), FORMS[row.dtype.name])
    return rows


def masks_of(path: str) -> Any:
    """Packed masks, a row each."""
    masks = np.atleast_2d(array_of("--masks", path))
    if masks.dtype.name not in ("int32", "uint32") or masks.ndim > 2:
        refuse("--masks", path, f"{masks.dtype.name} of shape {masks.shape}; rows of words of int32 or uint32 only")
    return masks


def tokens_of(option: str, path: str) -> List[int]:
    """The tokens of a JSON list."""
    try:
        tokens = json.loads(text_of(option, path))
    except (RecursionError, ValueError) as error:
        refuse(option, path, f"no JSON: {error}")
    if not isinstance(tokens, list) or any(type(token) is not int or not 0 <= token < 1 << 32 for token in tokens):
        refuse(option, path, "no list of tokens")
    return tokens
