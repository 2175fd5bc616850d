#!/usr/bin/env python3
"""Writes a program's manual page and its completion for bash, from the program's own help.

    manuals.py PROGRAM SECTION VERSION OUTPUT_FOLDER

Writes OUTPUT_FOLDER/NAME.SECTION.gz and OUTPUT_FOLDER/completion/NAME. Flags and usage come from --help, and from each
--helpmatch=... that the usage names.
"""

import gzip
import os
import pathlib
import re
import subprocess
import sys
from typing import Dict, List, NamedTuple

# Those of the flag library, which --help does not list.
COMMON = {
    "flagfile": ("Files of one flag a line, separated by commas", '""'),
    "help": ("Shows the flags and exits", "false"),
    "version": ("Shows the version and exits", "false"),
}


class Flag(NamedTuple):
    name: str
    text: str
    default: str

    @property
    def takes_value(self) -> bool:
        return self.default not in ("true", "false")


class Program(NamedTuple):
    name: str
    usage: List[str]  # lines
    flags: Dict[str, List[Flag]]  # by the title of their list

    @property
    def commands(self) -> List[str]:
        return re.findall(rf"^  {self.name} (\w+)", "\n".join(self.usage), re.MULTILINE)

    def all_flags(self) -> List[Flag]:
        return [flag for flags in self.flags.values() for flag in flags]


def said(program: pathlib.Path, flag: str) -> str:
    # The flag library exits with 1 after any help.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SORTITION")}
    return subprocess.run([program, flag], stdout=subprocess.PIPE, text=True, check=False, env=environment).stdout


def flags_in(text: str) -> List[Flag]:
    """A flag takes a line of four blanks, "--name (text); default: value;", wrapped into lines of six."""
    flags = []
    for entry in re.findall(r"^    (--.*(?:\n      .*)*)", text, re.MULTILINE):
        joined = " ".join(line.strip() for line in entry.splitlines())
        match = re.fullmatch(r"--(\w+) \((.*)\); default: (.*?);", joined)
        if not match:
            sys.exit(f"manuals: not understood: {joined}")
        flags.append(Flag(*match.groups()))
    return flags


def describe(program: pathlib.Path) -> Program:
    text = said(program, "--help")
    usage = text.split("\n  Flags from ")[0]
    lists = {"OPTIONS": flags_in(text) + [Flag(name, *rest) for name, rest in COMMON.items()]}
    for match in re.findall(r"--helpmatch=(\w+)", usage):
        lists[match.replace("_", " ").upper()] = flags_in(said(program, f"--helpmatch={match}"))
    return Program(program.name, usage.removeprefix(f"{program.name}: ").strip().splitlines(), lists)


def roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def page(program: Program, section: str, version: str) -> str:
    summary, *description = program.usage
    lines = [f'.TH {program.name.upper()} {section} "" "Sortition {version}"',
             ".SH NAME", f"{program.name} \\- {roff(summary.strip().rstrip('.'))}",
             ".SH SYNOPSIS", f".B {program.name}"]
    lines += ["[\\fIFLAGS\\fR]" + (" \\fICOMMAND\\fR [\\fIARGUMENT\\fR...]" if program.commands else "")]
    lines.append(".SH DESCRIPTION")
    for line in description:
        if line.startswith(" "):
            lines += [".nf", roff(line), ".fi"]
        elif line:
            lines.append(roff(line))
        else:
            lines.append(".PP")
    for title, flags in program.flags.items():
        lines.append(f".SH {title}")
        for flag in sorted(flags):
            value = f"=\\fI{roff(flag.default) or 'VALUE'}\\fR" if flag.takes_value else ""
            lines += [".TP", f"\\fB\\-\\-{flag.name}\\fR{value}", roff(flag.text) + "."]
    return "\n".join(lines).replace(".fi\n.nf\n", "") + "\n"


def completion(program: Program) -> str:
    words = [f"--{flag.name}{'=' if flag.takes_value else ''}" for flag in sorted(program.all_flags())]
    function = f"_{program.name}"
    return f"""# Completes the flags and commands of {program.name} in bash.
{function}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} i
  if [[ $word == = || $before == = ]]; then
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -f -- "${{word#=}}")
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W '{" ".join(words)}' -- "$word")
    if [[ ${{COMPREPLY[0]-}} == *= ]]; then compopt -o nospace; fi
  else
    for ((i = 1; i < COMP_CWORD; ++i)); do
      if [[ ${{COMP_WORDS[i]}} == = ]]; then
        ((++i))
      elif [[ ${{COMP_WORDS[i]}} != -* ]]; then
        return
      fi
    done
    mapfile -t COMPREPLY < <(compgen -W '{" ".join(program.commands)}' -- "$word")
  fi
}}
complete -o default -F {function} {program.name}
"""


def main(path: str, section: str, version: str, output: str) -> None:
    program = describe(pathlib.Path(path))
    folder = pathlib.Path(output)
    (folder / "completion").mkdir(parents=True, exist_ok=True)
    # Without a time and a name, the same text gives the same bytes.
    packed = gzip.compress(page(program, section, version).encode(), mtime=0)
    (folder / f"{program.name}.{section}.gz").write_bytes(packed)
    (folder / "completion" / program.name).write_text(completion(program), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
