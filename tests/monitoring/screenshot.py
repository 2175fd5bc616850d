"""Takes the pictures of the status page that the documentation shows: a server under load, in both colour schemes.

    screenshot.py BUILD_FOLDER PICTURE_FOLDER

Each picture names the page that it shows by a hash, so that a test can tell an old picture.
"""

import hashlib
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path += [os.path.join(ROOT, "tests/server"), os.path.join(ROOT, "tests/support")]

from browser import Browser  # noqa: E402
from sortitiond_process import Sortitiond, refuse_row  # noqa: E402

OPEN_S = 32
WIDTH, HEIGHT = 1120, 1440
SCHEMES = {"light": "status-page.png", "dark": "status-page-dark.png"}
SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORD = b"Page\0"
# Fits the window to the page, which is shorter or longer than it.
PAGE_HEIGHT = "Math.ceil(document.querySelector('main').getBoundingClientRect().height)"


def page_hash():
    with open(os.path.join(ROOT, "monitoring/status_page.html"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest().encode()


def chunks(png):
    """The kinds and contents of a picture's parts."""
    at = len(SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        yield png[at + 4:at + 8], png[at + 8:at + 8 + size]
        at += 12 + size


def with_hash(png):
    text = b"tEXt" + KEYWORD + page_hash()
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    end = len(SIGNATURE) + 25  # behind the header
    return png[:end] + chunk + png[end:]


def hash_of(png):
    """The hash of the page that the picture shows; None if it has none."""
    return next((content[len(KEYWORD):] for kind, content in chunks(png)
                 if kind == b"tEXt" and content.startswith(KEYWORD)), None)


def take(programs, open_s):
    """From each scheme to a picture, as PNG, of the page that has been open for so long. `programs`: the binaries'
    folder."""
    with tempfile.TemporaryDirectory() as folder, Sortitiond(
            f"{programs}/sortitiond", f"--listen=127.0.0.1:0,unix:{folder}/sortition.sock",
            "--metrics_listen=127.0.0.1:0", "--cpu_threads=2", "--slow_step=4ms") as server:
        tcp, unix = server.serving["listen"].split(",")
        for _ in range(3):
            refuse_row(tcp, folder)
        for option in ("--top_p=7", "--temperature=-1"):
            subprocess.run([f"{programs}/sortitionctl", "sample", f"{folder}/nan.f32", "--dtype=f32",
                            f"--server={tcp}", option], check=False, stderr=subprocess.DEVNULL)
        workers = [subprocess.Popen(
            [f"{programs}/scale_worker", f"--targets={target}", f"--workers={count}", "--sequences=32",
             "--vocabulary=128256"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            for target, count in ((tcp, 3), (unix, 2))]
        try:
            with Browser(WIDTH, HEIGHT) as browser:
                session = browser.open(f"http://{server.serving['metrics']}/")
                time.sleep(open_s)
                return {scheme: with_hash(picture(browser, session, scheme)) for scheme in SCHEMES}
        finally:
            for worker in workers:
                worker.communicate()


def picture(browser, session, scheme, width=WIDTH):
    browser.call("Emulation.setEmulatedMedia", session, features=[{"name": "prefers-color-scheme", "value": scheme}])
    height = browser.evaluate(session, PAGE_HEIGHT)
    browser.call("Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1,
                 mobile=False)
    return browser.picture(session)


def main():
    build, folder = sys.argv[1:]
    os.environ["TEST_SORTITIONCTL"] = f"{build}/bin/sortitionctl"
    for scheme, png in take(f"{build}/bin", OPEN_S).items():
        with open(os.path.join(folder, SCHEMES[scheme]), "wb") as file:
            file.write(png)


if __name__ == "__main__":
    main()
