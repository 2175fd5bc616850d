#!/usr/bin/env python3
"""Writes what is made from kernels/law/options.inc and is not C++: the verifier's tables and a table of a page.
The verifier's fields come from the contract, proto/sortition/v1/parameters.proto, and its limits from service/.

`option_tables.py` compares the files with what it would write, prints a line for each that differs, and exits with 1 if
there is any. `option_tables.py --write` writes them.
"""

import re
import sys
import textwrap
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

TABLE = Path("kernels/law/options.inc")
CONTRACT = Path("proto/sortition/v1/parameters.proto")
LIMITS = (Path("service/limits.inc"), Path("service/tuning_flags.inc"), Path("service/limits.h"))
PYTHON = Path("client/verify/sortition_verify/option_table.py")
PAGE = Path("docs/semantics.md")
BEGIN, END = "<!-- options.inc -->\n", "<!-- end of options.inc -->\n"
# Limits of parameters: the value of a fixed one, and the most that an operator can set of another one.
OF_PARAMETERS = ("max_string_tokens", "max_tag_tokens", "max_phases", "max_choice_index", "max_history",
                 "max_listed_tokens")
# Numbers of the law that reach a row as its edits alone.
AS_EDITS = ("frequency_penalty", "presence_penalty")
COLUMNS = {
    "LAW_NUMBER": "name type value form low high effect phase text",
    "LAW_FLAG": "name phase text",
    "LAW_MESSAGE": "name on phase more text",
    "LAW_PART": "name part member type value form low high",
    "HISTORY_NUMBER": "name value form low high text",
    "HISTORY_MESSAGE": "name on more text",
    "HISTORY_PART": "name part type value form low high effect",
    "LIST_OPTION": "name phase range value text",
    "STEP_OPTION": "name range value text",
    "SAMPLER": "sampler name first last greedy operand vllm llama_cpp hf",
}


class Line(NamedTuple):
    macro: str
    column: Dict[str, str]


def lines_of(source: str) -> Iterator[Line]:
    """The table's lines. A string that is split over source lines is joined."""
    text = re.sub(r"^#.*(?:\\\n.*)*", "", source, flags=re.MULTILINE)
    text = re.sub(r"(\"[^\"\n]*\")|//.*", lambda match: match[1] or "", text)
    begun = len(re.findall(rf"\b(?:{'|'.join(COLUMNS)})\(", text))
    found = re.findall(r"^(\w+)\(((?:\"[^\"]*\"|[^\"])*?)\)$", text, re.MULTILINE)
    if len(found) != begun or "\\" in text:
        raise ValueError(f"{TABLE}: {begun} lines begin, {len(found)} are read; none is indented or has a backslash")
    for macro, arguments in found:
        arguments = re.sub(r"\"\s*\"", "", arguments)
        values = [value.strip() for value in re.findall(r"(?:\"[^\"]*\"|[^,\"])+", arguments)]
        names = COLUMNS[macro].split()
        if len(values) != len(names):
            raise ValueError(f"{TABLE}: {macro}({arguments}) has {len(values)} columns, not {len(names)}")
        yield Line(macro, {name: value.strip('"') for name, value in zip(names, values)})


def number(text: str) -> float:
    """The value of a C++ expression of numbers."""
    value = eval(re.sub(r"(\d)[fu]\b", r"\1", text), {"__builtins__": {}})  # the table is our own
    return value


def limits_of(source: str) -> Dict[str, int]:
    """The values of OF_PARAMETERS."""

    def value(text: str) -> int:
        names = re.sub(r"(?:service::)?\b(k[A-Z]\w+)", lambda match: f"({value(constants[match[1]])})", text)
        return int(number(names.replace("/", "//")))

    constants = dict(re.findall(r"FIXED_LIMIT\(\w+, (\w+), \w+, ([^,]+),", source))
    constants.update(re.findall(r"^inline constexpr \w+ (k\w+) = ([^;]+);", source, re.MULTILINE))
    highest = dict(re.findall(r"\bLIMIT\(\w+, (\w+), [^,]+, [^,]+, ([^,]+),", source))
    highest.update(re.findall(r"FIXED_LIMIT\(\w+, \w+, (\w+), ([^,]+),", source))
    return {name: value(highest[name]) for name in OF_PARAMETERS}


def shown(text: str) -> str:
    return f"{number(text):.7g}" if "f" in text else str(number(text))


def range_of(column: Dict[str, str]) -> str:
    form = column["form"]
    if form == "OffAbove":
        return "any; 0 or >= vocabulary = off"
    low = shown(column["low"])
    high = column["high"] if form == "UpTo" else shown(column["high"])
    if form == "AboveLow":
        return f"({low}, {high}]"
    return {"ZeroOr": "0 or ", "OneOr": "1 or "}.get(form, "") + f"{low}..{high}"


class Contract:
    """Messages and enumerations by name: of each entry the number, and the words before it."""

    kinds = {"float": '"float"', "uint32": '"number"', "bool": '"bool"', "string": "str",
             "SamplingParameters": "WITHIN"}

    def __init__(self, source: str) -> None:
        self.blocks: Dict[str, List[Tuple[str, List[str]]]] = {}
        inside: List[str] = []
        in_oneof = False
        for line in re.sub(r" *//.*", "", source).splitlines():
            if line.endswith("{"):
                in_oneof = "oneof" in line
                inside.append(inside[-1] if in_oneof else line.split()[-2])
                self.blocks.setdefault(inside[-1], [])
            elif line.endswith("}"):
                inside.pop()
                in_oneof = False
            elif inside and " = " in line:
                words, number = line.rstrip(";").split(" = ")
                self.blocks[inside[-1]].append((number, ["optional"] * in_oneof + words.split()))

    def kind_of(self, name: str) -> str:
        if name in self.kinds:
            return self.kinds[name]
        block = self.blocks[name]
        if len(block[0][1]) == 1:
            return f"({', '.join(chr(34) + words[0] + chr(34) for _, words in block)})"
        return "{" + ", ".join(self.field(*entry) for entry in block) + "}"

    def field(self, number: str, words: List[str]) -> str:
        *label, kind, name = words
        item = self.kind_of(kind)
        return f'{number}: ("{name}", {f"[{item}]" if "repeated" in label else item})'

    def implicit(self) -> List[str]:
        """Names of the numbers and enumerations whose value 0 is no value. No two messages have one of a name."""
        kinds = {"float", "uint32", "bool", *(name for name, block in self.blocks.items() if len(block[0][1]) == 1)}
        return [words[1] for block in self.blocks.values() for _, words in block
                if len(words) == 2 and words[0] in kinds]


def may_change(column: Dict[str, str]) -> bool:
    """True if a phase may replace the option."""
    return column.get("phase") in ("Phase", "PhaseState")


def python_table(lines: List[Line], contract: Contract, limits: Dict[str, int]) -> str:
    defaults: Dict[str, str] = {}
    nested: Dict[str, Dict[str, str]] = {}
    by_presence: List[str] = []
    elsewhere: List[str] = []
    in_phases: List[str] = []
    ranges: Dict[str, Tuple[str, str, str]] = {}
    of_parts: Dict[str, str] = {}
    left_out = ["watermark"]  # its key is a secret
    for macro, column in lines:
        name = column["name"]
        if macro == "LAW_FLAG" or (macro == "LAW_MESSAGE" and column["on"] == "ByPresence"):
            defaults[name] = "False"
            by_presence += [name] * (macro == "LAW_MESSAGE")
        elif macro in ("LAW_NUMBER", "LAW_PART") and name not in AS_EDITS:
            option = column.get("member", name)
            is_float = column["type"] == "float"
            defaults[option] = repr(float(number(column["value"]))) if is_float else str(number(column["value"]))
            if macro == "LAW_PART":
                nested.setdefault(name, {})[column["part"]] = option
        elif macro in ("LAW_NUMBER", "HISTORY_NUMBER", "HISTORY_MESSAGE", "LIST_OPTION"):
            elsewhere.append(name)
        if may_change(column):
            in_phases.append(name)
        left_out += [name] * (column.get("phase") == "Answer")
        if macro == "HISTORY_PART":
            of_parts[f"{name}.{column['part']}"] = str(number(column["value"]))
        if column.get("form", "OffAbove") != "OffAbove":
            option = column.get("member") or (f"{name}.{column['part']}" if "part" in column else name)
            high = limits[column["high"]] if column["form"] == "UpTo" else number(column["high"])
            ranges[option] = (column["form"], str(number(column["low"])), str(high))
    orders = {}
    samplers = [line.column for line in lines if line.macro == "SAMPLER"]
    for preset in ("vllm", "llama_cpp", "hf"):
        orders[preset] = [column["name"] for column in sorted(samplers, key=lambda column: int(column[preset]))]

    effects = {".".join(filter(None, (column["name"], column.get("part")))): column["effect"]
               for _, column in lines if column.get("effect", "None") != "None"}
    fields = [(words[-1], contract.field(number, words)) for number, words in contract.blocks["SamplingParameters"]
              if words[-1] not in left_out]

    def wrapped(items: List[str]) -> str:
        """Lines that break between items, and within long ones."""
        whole = ", ".join(item if len(item) > 100 else item.replace(" ", "\0") for item in items) + ","
        return textwrap.indent(textwrap.fill(whole, 114, break_long_words=False), "    ").replace("\0", " ") + "\n"

    return (
        '"""The options of kernels/law/options.inc, from which tests/lint/option_tables.py writes this file."""\n\n'
        "# Options of the law and their off values.\nDEFAULTS = {\n"
        + wrapped([f'"{name}": {value}' for name, value in defaults.items()])
        + "}\n# Messages among the contract's fields: the option that each part is.\nNESTED = {\n"
        + "".join(f'    "{name}": {{{", ".join(f"{part!r}: {option!r}" for part, option in parts.items())}}},\n'
                  .replace("'", '"') for name, parts in nested.items())
        + "}\n# Messages that are on where they are set.\nBY_PRESENCE = ("
        + ", ".join(f'"{name}"' for name in by_presence) + ")\n"
        + "# Fields that reach a row as its edits, allowed tokens or noise (history.py), or that ask for more in the "
        + "answer.\n"
        + "ELSEWHERE = {\n" + wrapped([f'"{name}"' for name in elsewhere]) + "}\n"
        + "# Fields that a phase may replace.\n"
        + "IN_PHASES = {\n" + wrapped([f'"{name}"' for name in in_phases]) + "}\n"
        + "# Form, least and largest value. AboveLow excludes the least one; ZeroOr and OneOr take 0 and 1 too.\n"
        + "RANGES = {\n"
        + wrapped([f'"{name}": ("{form}", {low}, {high})' for name, (form, low, high) in ranges.items()])
        + "}\n# Parts of messages that the law does not see, where they are absent.\nOF_PARTS = {\n"
        + wrapped([f'"{name}": {value}' for name, value in of_parts.items()])
        + "}\n# Limits, by name: the largest value that a server can have.\nLIMITS = {\n"
        + wrapped([f'"{name}": {value}' for name, value in limits.items()])
        + "}\n# Effect of a number: with FewerBelow, Counts and Window a default of 0 stands for all.\nEFFECTS = {\n"
        + wrapped([f'"{name}": "{effect}"' for name, effect in effects.items()])
        + "}\n# Samplers that temperature 0 refuses.\nNOT_GREEDY = ("
        + ", ".join(f'"{column["name"]}"' for column in samplers if column["greedy"] == "Drops")
        + ")\n# Samplers whose stage has one operand, or none, and what it is.\nOPERANDS = {\n"
        + wrapped([f'"{column["name"]}": "{column["operand"]}"' for column in samplers if column["operand"] != "Own"])
        + "}\n# The samplers' orders in the presets.\nORDERS = {\n"
        + "".join(f'    "{preset}": (\n' + "".join("    " + row + "\n" for row in wrapped(
            [f'"{name}"' for name in order]).splitlines()) + "    ),\n" for preset, order in orders.items())
        + "}\n# Fields of the contract that receipts have, by number: name and kind. A list of one kind is a "
        + "repeated\n# field, a tuple an enumeration. WITHIN: those that a phase may replace.\nWITHIN = {\n"
        + wrapped([field for name, field in fields if name in in_phases])
        + "}\n# Fields whose value 0 is no value: no words state it.\nIMPLICIT = {"
        + ", ".join(f'"{name}"' for name in contract.implicit()) + "}\nFIELDS = {\n"
        + wrapped(["**WITHIN", *(field for name, field in fields if name not in in_phases)]) + "}\n")


def page_table(lines: List[Line]) -> str:
    rows: List[List[str]] = []
    more = ""  # about the parts of the last message that are no numbers
    for macro, column in lines:
        if "part" not in column and rows:
            rows[-1][1], more = rows[-1][1] + more, ""
        more = column.get("more", more)
        if macro == "SAMPLER":
            continue
        if "form" in column and "part" in column:
            rows[-1][1] += f"{', ' if rows[-1][1] else ''}{column['part']} {range_of(column)}"
            value = "required" if column["form"] == "Required" else shown(column["value"])
            rows[-1][2] += f"{', ' if rows[-1][2] else ''}{column['part']} {value}"
            continue
        is_number = "form" in column
        value = shown(column["value"]) if is_number else column.get("value", "off" if macro == "LAW_FLAG" else "")
        if column.get("on") == "ByPresence":
            value = "absent"
        scope = "step" if macro == "STEP_OPTION" else "phase" if may_change(column) else "text"
        fewer = {"FewerBelow": "below", "FewerAbove": "above"}.get(column.get("effect", ""), "")
        rows.append([f"`{column['name']}`", range_of(column) if is_number else column.get("range", ""), value, fewer,
                     scope])
    cells = "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)
    refused = [f"`{column['name']}`" for _, column in lines if column.get("greedy") == "Drops"]
    greedy = (f"Temperature 0 takes the first token, and refuses {', '.join(refused)} and `dynamic_temperature`, "
              "which could drop it.")
    return ("| option | range | default | keeps fewer | may change with |\n|---|---|---|---|---|\n" + cells + "\n"
            + textwrap.fill(greedy, 120) + "\n")


def main() -> int:
    lines = list(lines_of(TABLE.read_text(encoding="utf-8")))
    page = PAGE.read_text(encoding="utf-8")
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    contract = Contract(CONTRACT.read_text(encoding="utf-8"))
    limits = limits_of("\n".join(path.read_text(encoding="utf-8") for path in LIMITS))
    made = {PYTHON: python_table(lines, contract, limits), PAGE: page[:begin] + page_table(lines) + page[end:]}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if "--write" in sys.argv[1:]:
            path.write_text(made[path], encoding="utf-8")
        else:
            print(f"{path}:1: options: differs from {TABLE}; run tests/lint/option_tables.py --write")
    return 0 if "--write" in sys.argv[1:] or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
