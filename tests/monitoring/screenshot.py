"""Takes the README's picture of the status page: a server under load, the page after it has been open for a while.

    screenshot.py BUILD_FOLDER PNG
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests/server"))

from sortitiond_process import Sortitiond  # noqa: E402

OPEN_S = 32
WIDTH, HEIGHT = 1120, 1010


class Browser:
    """Chromium, driven over its debugging pipe: messages of JSON that end with a zero byte. A context manager."""

    def __init__(self, profile):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()

        def place():  # Chromium reads descriptor 3 and writes descriptor 4
            high = [os.dup2(commands, 33), os.dup2(answers, 34)]
            for number, end in enumerate(high, 3):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={profile}"],
            preexec_fn=place, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._read = b""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait()

    def call(self, method, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._read:
                self._read += os.read(self._answers, 1 << 16)
            text, self._read = self._read.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self._number:
                return answer["result"]


def main():
    build, picture = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, Sortitiond(
            f"{build}/bin/sortitiond", f"--listen=127.0.0.1:0,unix:{folder}/sortition.sock",
            "--metrics_listen=127.0.0.1:0", "--cpu_threads=2") as server:
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
        with Browser(os.path.join(folder, "profile")) as browser:
            target = browser.call("Target.createTarget", url=f"http://{server.serving['metrics']}/")["targetId"]
            session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            time.sleep(OPEN_S)
            shot = browser.call("Page.captureScreenshot", session)["data"]
        for worker in workers:
            worker.communicate()
    with open(picture, "wb") as file:
        file.write(base64.b64decode(shot))


if __name__ == "__main__":
    main()
