"""The interfaces of engines that the adapters touch, and their hashes under each tested version.

interfaces.json lists them. An interface is a place "module.Class.name" and a part of it: "signature" (of a class: its
bases, its fields and how it is made), "source", or "lines NAME(" for the lines of a module that contain a text. The
hash is of this text without comments, blank lines and docstrings. It is "" where the version has no such place. Modules
are read as files: nothing of an engine is imported.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import pathlib
import re
from typing import Any, Dict, List, Optional, Tuple

FILE = pathlib.Path(__file__).with_suffix(".json")
# The most differing interfaces that a refusal names.
_MOST_NAMED = 5


@functools.lru_cache(maxsize=None)
def known() -> Dict[str, Any]:
    """Returns the file: for each engine its "package", its tested "versions", and its "interfaces".

    An interface is [part, hash...], with a hash for each version.
    """
    return json.loads(FILE.read_text(encoding="utf-8"))


def plain_version(version: str) -> str:
    """Returns the version without the name of its build, which may follow a "+"."""
    return version.split("+", maxsplit=1)[0]


def check(engine: str, version: str, log: logging.Logger) -> None:
    """Warns of a version that was not tested. Refuses it if an interface differs from those of every tested one."""
    version, versions = plain_version(version), known()[engine]["versions"]
    if version in versions:
        return
    tested = " and ".join(versions)
    differing = [place for place, (_, *hashes) in known()[engine]["interfaces"].items()
                 if hash_of(engine, place) not in hashes]
    if differing:
        named = ", ".join(differing[:_MOST_NAMED])
        more = f" and {len(differing) - _MOST_NAMED} more" if len(differing) > _MOST_NAMED else ""
        raise RuntimeError(f"Sortition supports {engine} {tested}. Version {version} differs in what the adapter "
                           f"touches: {named}{more}")
    log.warning("Sortition is tested with %s %s, not with %s. All interfaces that the adapter touches are those of a"
                " tested version", engine, tested, version)


def hash_of(engine: str, place: str, root: Optional[pathlib.Path] = None) -> str:
    """Returns an interface's hash. `root`: the folder of the engine's package, by default of the one installed."""
    text = text_of(engine, place, root)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest() if text else ""


def text_of(engine: str, place: str, root: Optional[pathlib.Path] = None) -> str:
    """Returns the text that an interface's hash is of; "" if there is no such place."""
    part = known()[engine]["interfaces"][place][0]
    text, names = _module_of(place, root or root_of(known()[engine]["package"]))
    if part.startswith("lines "):
        return "\n".join(line.strip() for line in re.findall(rf"^.*{re.escape(part[len('lines '):])}.*$", text, re.M))
    for depth, name in enumerate(names):
        text = _definition(text, name, 4 * depth)
    text = _plain(text)
    if not text or part == "source":
        return text
    return _class_signature(text, 4 * len(names)) if re.match(r"\s*class ", text) else _signature(text)


def root_of(package: str) -> pathlib.Path:
    """Returns the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed")
    return pathlib.Path(spec.submodule_search_locations[0])


def _module_of(place: str, root: pathlib.Path) -> Tuple[str, List[str]]:
    """Returns the text of a place's module, and the names of the place within it."""
    path, names = root, place.split(".")[1:]
    while names and (path / names[0]).is_dir():
        path, names = path / names[0], names[1:]
    if names and (path / f"{names[0]}.py").is_file():
        path, names = path / f"{names[0]}.py", names[1:]
    else:
        path = path / "__init__.py"
    return _read(path), names


@functools.lru_cache(maxsize=None)
def _read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _definition(text: str, name: str, indent: int) -> str:
    """Returns all definitions of a name at an indentation."""
    begins = re.compile(rf"^ {{{indent}}}(?:(?:async )?def {name}\b|class {name}\b|{name}\s*[:=])", re.M)
    # Texts within a definition may begin further left than it: only another definition ends it.
    ends = re.compile(rf"^ {{0,{indent}}}(?:(?:async )?def |class |@|if |[A-Za-z_]\w*\s*[:=])", re.M)
    found = []
    for begin in begins.finditer(text):
        end = ends.search(text, text.find("\n", begin.end()) + 1 or len(text))
        found.append(text[begin.start():end.start() if end else len(text)])
    return "".join(found)


def _plain(text: str) -> str:
    """Returns the text without docstrings, comments and blank lines."""
    text = re.sub(r'^[ \t]*[rR]?("""|\'\'\')[\s\S]*?\1[ \t]*(#.*)?$', "", text, flags=re.M)
    lines = (re.sub(r"\s+# .*$", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def _signature(text: str) -> str:
    """Returns what stands before a definition's body, in one line."""
    line, depth = " ".join(text.split()), 0
    for index, letter in enumerate(line):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == ":" and depth == 0:
            return line[:index]
    return line


def _class_signature(text: str, indent: int) -> str:
    fields = [line.strip() for line in text.splitlines() if re.match(rf" {{{indent}}}[A-Za-z_]\w*\s*[:=]", line)]
    made = _definition(text, "__init__", indent)
    return "\n".join([_signature(text), *fields, *([_signature(made)] if made else [])])
