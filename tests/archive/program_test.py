"""The self-test as a prover: archives of two targets and of servers, of which one is killed, are equal, and --against
continues where it was left, reports differences and refuses another comparison's file."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "client/archive"))
import prove  # noqa: E402

SELF_TEST = os.environ["TEST_SELF_TEST"]


def run(*flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SELF_TEST, *flags], capture_output=True, text=True, timeout=200, check=False)


class ProgramTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_archives_of_all_ways_are_equal(self) -> None:
        build = pathlib.Path(SELF_TEST).parent.parent
        said = io.StringIO()
        sys.argv = ["prove.py", str(build), str(self.folder), "--by=a test",
                    "--only=cpu-scalar,service-ring,service-compact,service-replicas"]
        with contextlib.redirect_stdout(said):
            self.assertEqual(prove.main(), 0, said.getvalue())
        self.assertIn("4 archives", said.getvalue())
        self.assertEqual(sorted(path.name for path in self.folder.glob("*.tar.gz"))[0], "cpu-scalar.tar.gz")

    def test_a_program_is_a_device(self) -> None:
        answers = "pipe:" + os.environ["TEST_PIPED_ANSWERS"]
        compared = run("--against=local:reference", f"--device={answers} scalar", "--rows=4000")
        self.assertEqual(compared.returncode, 0, compared.stderr)
        self.assertIn(", 0 differ, 0 left out", compared.stdout)
        for command, why in ((f"{answers} mmx", "has ended"), ("pipe:exit", "has ended"), ("pipe:yes", "has ended"),
                             (r"pipe:printf '\005\0\0\0law 9'", 'is of "law 9"')):
            refused = run("--against=local:reference", f"--device={command}", "--rows=1")
            self.assertEqual(refused.returncode, 2, command)
            self.assertIn(why, refused.stderr)
        # It names itself, and then answers nothing, or something else.
        name = r"pipe:printf '\012\0\0\0law 1, one'"
        empty = r"head -c 4 >/dev/null; printf '\0\0\0\0'; cat"
        for command, why in ((name, "has ended"), (f"{name}; {empty}", "form")):
            failed = run("--against=local:reference", f"--device={command}", "--rows=1")
            self.assertEqual(failed.returncode, 2, command)
            self.assertIn(why, failed.stderr)

    def test_some_texts_are_compared_with_all(self) -> None:
        whole, some = (str(self.folder / name) for name in ("whole.tar.gz", "some.tar.gz"))
        self.assertEqual(run(f"--prove={some}", "--device=cpu:scalar", "--texts=1").returncode, 0)
        self.assertEqual(run(f"--prove={whole}", "--device=cpu").returncode, 0)
        compared = run("--compare", whole, some)
        self.assertEqual(compared.returncode, 0, compared.stderr)
        self.assertIn("all 13 texts are equal, in every bit; 243 were not compared", compared.stdout)
        self.assertEqual(run(f"--prove={some}", "--texts=0").returncode, 2)

    def test_compare_names_what_it_cannot_use(self) -> None:
        path = self.folder / "no.tar.gz"
        path.write_bytes(b"\x1f\x8b")
        compared = run("--compare", str(path), str(path))
        self.assertEqual(compared.returncode, 2)
        self.assertIn("no.tar.gz: cut:", compared.stderr)
        self.assertEqual(run("--compare", str(path)).returncode, 2)
        self.assertIn("cannot be read", run("--compare", "none", "none").stderr)

    def test_prove_names_a_device_that_is_not_there(self) -> None:
        answer = run(f"--prove={self.folder}/a", "--device=cpu:mmx")
        self.assertEqual(answer.returncode, 2)
        self.assertIn("cpu:TARGET has one of auto", answer.stderr)
        self.assertFalse((self.folder / "a").exists())

    def test_against_continues_where_it_was_left(self) -> None:
        resume = f"--resume={self.folder}/state"
        first = run("--against=local:reference", "--device=cpu:scalar", "--rows=1000", resume)
        self.assertEqual(first.returncode, 0, first.stderr)
        state = (self.folder / "state").read_text(encoding="ascii")
        self.assertIn(" different 0 ", state)
        second = run("--against=local:reference", "--device=cpu:scalar", "--rows=2000", resume)
        self.assertEqual(second.returncode, 0, second.stderr)
        units = [int(text.split("units ")[1].split()[0]) for text in
                 (state, (self.folder / "state").read_text(encoding="ascii"))]
        self.assertGreater(units[1], units[0])
        other = run("--against=local:cpu", "--device=cpu:scalar", "--rows=2000", resume)
        self.assertEqual(other.returncode, 2)
        self.assertIn("is of", other.stderr)

    def test_against_reports_what_the_file_has_found(self) -> None:
        state = self.folder / "state"
        run("--against=local:reference", "--device=cpu:scalar", "--rows=200", f"--resume={state}")
        state.write_text(state.read_text(encoding="ascii").replace("different 0", "different 3"), encoding="ascii")
        again = run("--against=local:reference", "--device=cpu:scalar", "--rows=200", f"--resume={state}")
        self.assertEqual(again.returncode, 1)
        self.assertIn("3 differ", again.stdout)

    def test_against_compares_with_a_service(self) -> None:
        maker = prove.Maker(pathlib.Path(SELF_TEST).parent.parent, self.folder, [])
        with maker.servers(1) as (server,):
            answer = run(f"--against={server.address()}", "--rows=4000")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("0 differ", answer.stdout)


if __name__ == "__main__":
    unittest.main()
