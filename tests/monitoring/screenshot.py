"""Takes the README's picture of the status page: a server under load, the page after it has been open for a while.

    screenshot.py BUILD_FOLDER PNG
"""

import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path += [os.path.join(ROOT, "tests/server"), os.path.join(ROOT, "tests/support")]

from browser import Browser  # noqa: E402
from sortitiond_process import Sortitiond  # noqa: E402

OPEN_S = 32
WIDTH, HEIGHT = 1120, 1440


def main():
    build, picture = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, Sortitiond(
            f"{build}/bin/sortitiond", f"--listen=127.0.0.1:0,unix:{folder}/sortition.sock",
            "--metrics_listen=127.0.0.1:0", "--cpu_threads=2", "--slow_step=4ms") as server:
        tcp, unix = server.serving["listen"].split(",")
        row = os.path.join(folder, "row.f32")
        with open(row, "wb") as file:
            file.write(b"\0\0\xc0\x7f" * 8)  # NaN, which is refused
        for _ in range(3):
            subprocess.run([f"{build}/bin/sortitionctl", "sample", row, "--dtype=f32", f"--server={tcp}"], check=False,
                           stderr=subprocess.DEVNULL)
        workers = [subprocess.Popen(
            [f"{build}/bin/scale_worker", f"--targets={target}", f"--workers={count}", "--sequences=32",
             "--vocabulary=128256"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            for target, count in ((tcp, 3), (unix, 2))]
        with Browser(WIDTH, HEIGHT) as browser:
            session = browser.open(f"http://{server.serving['metrics']}/")
            time.sleep(OPEN_S)
            shot = browser.picture(session)
        for worker in workers:
            worker.communicate()
    with open(picture, "wb") as file:
        file.write(shot)


if __name__ == "__main__":
    main()
