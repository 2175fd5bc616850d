"""Makes the verifier's page one file: page.py FILE.html

It puts the scripts and the published vectors into page.html. The file needs no server and no other file.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
LAW = HERE.parent.parent / "kernels/law"
VECTORS = ("golden_outputs.json", "law_1_rows.json", "law_1_filters.json", "law_1_histories.json",
           "law_1_records.json", "law_1_marks.json")


def page(vectors=VECTORS):
    """The page as text; `vectors` are names in kernels/law."""
    text = (HERE / "page.html").read_text(encoding="utf-8")
    files = ",\n".join((LAW / name).read_text(encoding="utf-8") for name in vectors)
    files = files.replace("</", "<\\/")  # no text within the script element ends it
    text = text.replace(">null</script>", f">[{files}]</script>")
    return re.sub(r'<script src="(\w+\.js)"></script>',
                  lambda found: f"<script>\n{(HERE / found.group(1)).read_text(encoding='utf-8')}</script>", text)


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(page(), encoding="utf-8")
