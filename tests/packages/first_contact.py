"""The README's ways from nothing to a token: the shell blocks under its heading, by the word in bold before each."""

import re

from bare_root import SOURCE

MOST_LINES = 5


def ways():
    readme = (SOURCE / "README.md").read_text(encoding="utf-8")
    section = readme.split("\n## From nothing to a token\n")[1].split("\n## ")[0]
    found = dict(re.findall(r"\*\*(\w+)\*\*[^`]*(?:`[^`\n]+`[^`]*)*```sh\n(.*?)```", section, re.DOTALL))
    for name, script in found.items():
        assert len(script.splitlines()) <= MOST_LINES, f"{name} takes more than {MOST_LINES} lines"
    return found


def split(script):
    """The lines that need a network, and the lines after them."""
    lines = script.splitlines()
    needs = [number for number, line in enumerate(lines) if re.search(r"apt-get |pip install ", line)]
    first = needs[-1] + 1 if needs else 0
    return "\n".join(lines[:first]), "\n".join(lines[first:])
