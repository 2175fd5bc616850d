"""Takes the picture of the verifier's page, with a file of receipts checked: page_picture.py PNG"""

import base64
import io
import pathlib
import sys
import tempfile

import numpy as np
import receipt_maker as maker

sys.path[:0] = [str(maker.SOURCE / "client/verifier"), str(maker.SOURCE / "tests/support")]

from browser import READ_OUTPUTS, Browser  # noqa: E402
from page import page  # noqa: E402

WIDTH, HEIGHT = 960, 900


def dropped(files):
    """A script that drops files on the page; `files` are contents by name."""
    items = "".join(f"box.items.add(new File([Uint8Array.from(atob('{base64.b64encode(data).decode()}'),"
                    f" (c) => c.charCodeAt(0))], '{name}'));" for name, data in files.items())
    return (f"const box = new DataTransfer(); {items}"
            "document.dispatchEvent(new DragEvent('drop', { dataTransfer: box }));")


def npy(bits):
    file = io.BytesIO()
    np.save(file, bits.view(np.float32))
    return file.getvalue()


def main():
    chain = maker.Chain(vocabulary=1000, parameters={"temperature": 0.7, "top_p": 0.9}).draw(40)
    position = min(chain.rows)
    fields = {"keys": maker.public_key(maker.KEY).hex(), "seeds": maker.seed_line(chain), "position": str(position)}
    script = "".join(f"at('{name}').value = '{value}';" for name, value in fields.items())
    script += dropped({"receipts.bin": chain.file(), "row.npy": npy(chain.rows[position])})
    with tempfile.TemporaryDirectory() as folder, Browser(WIDTH, HEIGHT) as browser:
        file = pathlib.Path(folder) / "page.html"
        file.write_text(page([]), encoding="utf-8")
        session = browser.open(f"file://{file}")
        said = browser.evaluate(session, READ_OUTPUTS % script)["receipts"]
        assert said.endswith("no problem found"), said
        pathlib.Path(sys.argv[1]).write_bytes(browser.picture(session))


if __name__ == "__main__":
    main()
