"""Checks archives of texts (docs/verifier.md): that one is whole, and that its tokens, bits and receipts are the law's.

    report = check("avx2.tar.gz")
    print(report.text())

A file of any size may be given: at most 64 MiB are unpacked, in memory. Nothing of it is run.
"""

import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np

from sortition_verify import receipt_columns
from sortition_verify.archive_receipts import SaidText, check_receipts, said_texts
from sortition_verify.arguments import plain
from sortition_verify.receipts import MOST_PROBLEMS
from sortition_verify.row import RowError
from sortition_verify.text_model import VOCABULARY, Model
from sortition_verify.texts import WORDS, Setting, Texts

FORMAT, LAW_VERSION = "sortition proof 1", "1"
# The SHA-256 of client/archive/settings.json.
SETTINGS = "78b9c9ba825adae7a81c1d5f92a98170fe43ed463e3889242955e30fe50de121"
MOST_BYTES = 64 << 20
MOST_JSON = 1 << 20  # bytes of a file of JSON, whose objects take some 25 times its size
MANIFEST = "proof.json"
FILES = ("machine.json", "settings.json", "vectors.json", "texts.bin", "seeds.txt", "receipts.bin", "signature.bin")
VECTORS, MAGIC = "golden_outputs.json", b"sortprf1"
MOST_SHOWN = 20  # problems of one name


class Refused(Exception):
    """An archive that cannot be read on: `name` is a word of docs/verifier.md."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


@dataclass
class Report:
    """Numbers of what was checked and is right, problems, and what was not checked."""

    file: str
    machine: Dict[str, Any] = field(default_factory=dict)
    checked: Dict[str, int] = field(default_factory=dict)
    problems: List[Dict[str, Any]] = field(default_factory=list)  # the first MOST_PROBLEMS
    problem_counts: Dict[str, int] = field(default_factory=Counter)  # of all problems, by name
    not_checked: List[str] = field(default_factory=list)
    is_whole: bool = True  # every check that an archive allows was made

    def unchecked(self, what: str) -> None:
        """Notes a check that was not made though an archive allows it."""
        self.is_whole = False
        self.not_checked.append(what)

    def status(self) -> int:
        """The exit status: 0 if everything was checked and is right, 4 with a problem, else 5."""
        return 4 if self.problems else 0 if self.is_whole else 5

    def problem(self, name: str, why: str, **place: int) -> None:
        self.problem_counts[name] += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append({"name": name, **place, "why": why})

    def text(self) -> str:
        # No word of the archive is printed raw: logs may take some for commands.
        said = ", ".join(f"{name} {self.machine.get(name)!a:.80}" for name in ("device", "by", "made", "transport"))
        lines = [f"{plain(self.file)}: {said}"] if self.machine else []
        lines += [f"{count:,} {what}" for what, count in self.checked.items()]
        lines += [f"not checked: {what}" for what in self.not_checked]
        shown: Dict[str, int] = {}
        for problem in self.problems:
            shown[problem["name"]] = count = shown.get(problem["name"], 0) + 1
            if count <= MOST_SHOWN:
                place = "".join(f", {name} {problem[name]}" for name in ("text", "token") if name in problem)
                lines.append(f"PROBLEM {problem['name']}{place}: {problem['why']}")
        more = {name: count - min(shown.get(name, 0), MOST_SHOWN) for name, count in self.problem_counts.items()}
        lines += [f"{count} more problems {name}" for name, count in more.items() if count]
        count = sum(self.problem_counts.values())
        return "\n".join([*lines, f"{count} problems" if count else "no problem found"])


def check(path: str, keys: Iterable[bytes] = (), settings: str = SETTINGS,
          progress: Callable[[str], None] = lambda line: None) -> Report:
    """Checks an archive. `keys` are public keys, of which one has to have signed the receipts; with none the key that
    the archive names. `settings` is the SHA-256 of the settings that it has to have."""
    report = Report(os.path.basename(path))
    try:
        files = unpacked(path)
        model, listed, length = opened(files, settings, report)
        records = records_of(files)
        texts = check_texts(files, model, listed, length, report, progress)
        check_receipts(files, records, report, list(keys), listed, texts, length)
    except Refused as refusal:
        report.problem(refusal.name, refusal.why)
        report.checked.clear()
        report.unchecked("anything else of this archive")
    return report


# --- the files

def unpacked(path: str) -> Dict[str, bytes]:
    """The archive's files by name, in their order."""
    data, pieces = zlib.decompressobj(31), []
    left = MOST_BYTES
    with open(path, "rb") as file:
        while not data.eof:
            packed = data.unconsumed_tail or file.read(1 << 20)
            if not packed:
                raise Refused("cut", "the gzip ends early")
            try:
                pieces.append(data.decompress(packed, left + 1))
            except zlib.error as error:
                raise Refused("damaged", f"no gzip: {error}") from None
            left -= len(pieces[-1])
            if left < 0:
                raise Refused("too large", f"more than {MOST_BYTES} bytes unpacked")
        if data.unused_data or file.read(1):
            raise Refused("damaged", "bytes behind the gzip")
    return files_of(b"".join(pieces))


def files_of(data: bytes) -> Dict[str, bytes]:
    """The files of a tar. Nothing but plain files of the archive's names is read."""
    found: Dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                if member.name not in (MANIFEST, *FILES):
                    raise Refused("unknown file", f"{member.name!a:.80}")
                if member.type != tarfile.REGTYPE or member.pax_headers or member.name in found:
                    raise Refused("damaged", f"{member.name} is twice in the tar, or no plain file")
                found[member.name] = data[member.offset_data:member.offset_data + member.size]
                if len(found[member.name]) != member.size:
                    raise Refused("cut", f"the tar ends within {member.name}")
            if data[tar.offset:].strip(b"\0"):
                raise Refused("damaged", "bytes behind the tar")
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise Refused("damaged", f"no tar: {error}") from None
    return found


def json_of(files: Dict[str, bytes], name: str) -> Dict[str, Any]:
    """A file's object, without doubled members."""

    def members(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a member twice")
        return dict(pairs)

    if len(files[name]) > MOST_JSON:
        raise Refused("too large", f"{name} has {len(files[name])} bytes, at most {MOST_JSON}")
    try:
        found = json.loads(files[name].decode("utf-8"), object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise Refused("damaged", f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused("damaged", f"{name} is no JSON object")
    return found


def opened(files: Dict[str, bytes], settings: str, report: Report) -> Tuple[Model, List[Setting], int]:
    """Checks all files but texts and receipts. Refuses an archive whose texts this program cannot follow."""
    for name in (MANIFEST, *FILES):
        if name not in files:
            raise Refused("missing file", name)
    if tuple(files) != (MANIFEST, *FILES):
        raise Refused("damaged", "the files are in another order")
    manifest = json_of(files, MANIFEST)
    if manifest.get("format") != FORMAT:
        raise Refused("unknown format", f"{manifest.get('format')!a:.80} is not {FORMAT!r}")
    if manifest.get("id") != hashlib.sha256(files["machine.json"]).hexdigest():
        raise Refused("mixed", "machine.json is not that of the archive's id")
    listed = manifest.get("files")
    if not isinstance(listed, dict) or set(listed) != set(FILES):
        raise Refused("damaged", "proof.json does not list the archive's files")
    for name in FILES:
        entry, size = listed[name], len(files[name])
        entry = entry if isinstance(entry, dict) else {}
        if isinstance(entry.get("bytes"), int) and size < entry["bytes"]:
            raise Refused("cut", f"{name} has {size} bytes, not {entry['bytes']}")
        if entry != {"bytes": size, "sha256": hashlib.sha256(files[name]).hexdigest()}:
            # Differences of texts and receipts are named below.
            report.problem("damaged", f"{name} has changed, or is another archive's")
    report.machine = json_of(files, "machine.json")
    if report.machine.get("law_version") != LAW_VERSION:
        raise Refused("other law", f"version {report.machine.get('law_version')!a:.80}; this program has {LAW_VERSION}")
    report.checked["files whole, of one machine"] = len(FILES) - len(report.problems)
    check_vectors(json_of(files, "vectors.json"), report)
    return settings_of(files, settings, report)


def texts_of_each(machine: Dict[str, Any]) -> int:
    """The number of texts of each setting that the archive has at most."""
    said = machine.get("texts", str(MOST_BYTES))
    if not isinstance(said, str) or not re.fullmatch("[1-9][0-9]{0,8}", said):
        raise Refused("damaged", f"machine.json: {said!a:.80} is no number of texts")
    return int(said)


def records_of(files: Dict[str, bytes]) -> bytes:
    """The records of receipts.bin and signature.bin, a file of receipts as in docs/receipts.md."""
    try:
        return receipt_columns.unpacked(files["receipts.bin"]) + files["signature.bin"]
    except ValueError as error:
        raise Refused("damaged", f"receipts.bin: {error}") from None


def settings_of(files: Dict[str, bytes], wanted: str, report: Report) -> Tuple[Model, List[Setting], int]:
    """The model, the settings with the texts that the machine has drawn, and the number of tokens of a text."""
    each = texts_of_each(report.machine)
    given, digest = json_of(files, "settings.json"), hashlib.sha256(files["settings.json"]).hexdigest()
    try:
        described = given["model"]
        model, first, listed = Model(described["seed"]), 0, []
        if described["vocabulary"] != VOCABULARY or described["contexts_sha256"] != model.contexts_sha256():
            raise Refused("other model", f"{described!a:.120}")
        if digest != wanted:
            raise Refused("other settings", f"settings.json has the SHA-256 {digest}, this program knows {wanted}")
        for setting in given["settings"]:
            listed.append(Setting(first=first, **{**setting, "texts": min(setting["texts"], each)}))
            first += setting["texts"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Refused("other settings", f"settings.json: {error}") from None
    missing = first - sum(setting.texts for setting in listed)
    if missing:
        report.unchecked(f"{missing} of {first} texts, which the archive does not have")
    return model, listed, given["tokens"]


def check_vectors(vectors: Dict[str, Any], report: Report) -> None:
    """Reads what the machine says of its golden rows. It cannot be checked here: their answers are not in the
    archive."""
    if set(vectors) != {VECTORS} or not isinstance(vectors[VECTORS], dict):
        raise Refused("damaged", f"vectors.json does not say how {VECTORS} was answered")
    said = {name: f"{vectors[VECTORS].get(name)!a:.80}" for name in ("answered", "rows", "different")}
    if said["different"] != "[]":
        report.problem("wrong_vectors", f"the machine answered rows of {VECTORS} wrongly: {said['different']}")
    report.not_checked.append(f"that the device answers {said['answered']} of {said['rows']} rows of {VECTORS}, as "
                              "the machine says")


# --- the texts

def check_texts(files: Dict[str, bytes], model: Model, listed: List[Setting], length: int, report: Report,
                progress: Callable[[str], None]) -> Dict[int, SaidText]:
    """Draws all texts again. Returns what the law says of those that agree and have receipts."""
    file, count = files["texts.bin"], sum(setting.texts for setting in listed)
    start = MAGIC + np.array([count, length], "<u4").tobytes() + hashlib.sha256(files["settings.json"]).digest()
    size = len(start) + sum(setting.texts * (32 + 4 * length * setting.words) for setting in listed)
    if file[:len(start)] != start:
        raise Refused("damaged", "texts.bin begins as one of another format, or of other settings")
    if len(file) != size:
        raise Refused("cut" if len(file) < size else "damaged", f"texts.bin has {len(file)} bytes, not {size}")
    texts: Dict[int, SaidText] = {}
    numbers: Dict[str, int] = {"rows of the model": 0, "tokens and logprobs drawn again": 0}
    at = len(start)
    for setting in listed:
        part = np.frombuffer(file, np.uint8, setting.texts * (32 + 4 * length * setting.words), at)
        part = part.reshape(setting.texts, -1)
        at += part.size
        words = np.ascontiguousarray(part[:, 32:]).view("<u4").reshape(setting.texts, length, setting.words)
        before = sum(report.problem_counts.values())
        said = check_setting(model, setting, words, part[:, :32], report, numbers)
        if setting.has_receipts:
            texts.update(said)
        progress(f"{setting.name}: {setting.texts} texts, {sum(report.problem_counts.values()) - before} problems")
    report.checked.update(numbers)
    return texts


def check_setting(model: Model, setting: Setting, words: Any, hashes: Any, report: Report,
                  numbers: Dict[str, int]) -> Dict[int, SaidText]:
    """Draws the texts of a setting again. Returns what the law says of those that agree."""
    outside = np.argwhere(words[:, :, 0] >= VOCABULARY)
    try:
        if outside.size:
            raise ValueError(f"text {setting.first + outside[0, 0]}, token {outside[0, 1]}: not in the vocabulary")
        said = Texts(model, setting, words[:, :, 0].astype(np.int64)).answers()
    except (RowError, ValueError) as error:
        report.problem("wrong_token", f"{error}")
        report.unchecked(f"the texts of {setting.name}")
        return {}
    lawful = said.words.reshape(words.shape)
    differs = words != lawful
    texts = said_texts(setting, said, words.shape[1])
    for at in range(setting.texts):
        text, tokens = setting.first + at, np.flatnonzero(differs[at].any(axis=1))
        if tokens.size:
            word = int(np.argmax(differs[at, tokens[0]]))
            given, follows = (shown(word, int(part[at, tokens[0], word])) for part in (words, lawful))
            more = f"; {tokens.size - 1} later tokens differ, too" if tokens.size > 1 else ""
            report.problem({0: "wrong_token", 2: "wrong_row"}.get(word, "wrong_logprob"),
                           f"{WORDS[word]} {given}, {follows} by the law{more}", text=text, token=int(tokens[0]))
        elif hashes[at].tobytes() != said.rows[at]:
            report.problem("wrong_row", "another hash of its rows", text=text)
        else:
            continue
        del texts[text]
        report.unchecked(f"the receipts of text {text} against the law")
    numbers["rows of the model"] += int(np.count_nonzero(~differs[:, :, 2]))
    numbers["tokens and logprobs drawn again"] += int(np.count_nonzero(~differs.any(axis=2)))
    if setting.words > 3:
        numbers["of them with raw logprobs, ranks, entropy, kept counts"] = int(np.count_nonzero(~differs.any(axis=2)))
    return texts


def shown(word: int, value: int) -> str:
    is_number = WORDS[word] in ("token", "raw rank", "kept count") or WORDS[word].startswith("raw token")
    return str(value) if is_number else f"0x{value:08x}"
