"""The installed client: programs outside the tree find it, build with it and run, and the server is not in them."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parent / "outside"
VECTORS = pathlib.Path(__file__).parents[1] / "verifier/receipts_vectors.json"
BUILD = os.environ["TEST_BUILD_DIR"]
COMPILER = os.environ["TEST_COMPILER"]
PUBLIC = {"batch.h", "client.h", "errors.h", "in_process.h", "local_sequence.h", "options.h",
          "receipt_verifier.h", "receipts.h", "watermark.h", "v1/errors.pb.h", "v1/parameters.pb.h", "v1/sampling.pb.h"}
# Parts of the server and of its samplers, which a program with the client alone has no use for. It has the kernels that
# make compact rows.
SERVER = re.compile(r"sortition::(service::(Session|Batcher|Engine|SequenceTable|Text|RowRun|CheckpointKey)"
                    r"|devices::(Device|CpuDevice|cuda::\w+)|kernels::cpu::SampleRow|client::LocalText)\b")


def run(*command: str, code: int = 0, **environment: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == code, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


class Outside(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = f"{cls.folder.name}/installed"
        for component in ("client", "cmake"):
            run("cmake", "--install", BUILD, "--component", component, "--prefix", cls.prefix)
        cls.built = f"{cls.folder.name}/build"
        run("cmake", "-S", str(SOURCE), "-B", cls.built, f"-DCMAKE_PREFIX_PATH={cls.prefix}",
            f"-DCMAKE_CXX_COMPILER={COMPILER}")
        run("cmake", "--build", cls.built)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def test_headers_compile_alone_from_any_include_path(self) -> None:
        headers = pathlib.Path(self.prefix, "include", "sortition")
        self.assertEqual({str(header.relative_to(headers)) for header in headers.rglob("*.h")}, PUBLIC)
        for header in sorted(PUBLIC):
            if header.startswith("v1/"):
                continue
            with self.subTest(header):
                program = f"{self.folder.name}/alone.cc"
                pathlib.Path(program).write_text(f'#include "{headers / header}"\n')
                run(COMPILER, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", program)

    def test_in_process_draws_what_local_sequence_draws(self) -> None:
        self.assertRegex(run(f"{self.built}/local"), r"^tokens (\d) \1\n$")

    def test_in_process_target_without_engine_names_the_cure(self) -> None:
        said = run(f"{self.built}/worker", "in_process", code=1)
        self.assertIn("link sortition_in_process", said)
        self.assertIn("InProcessEngine()", said)

    def verified(self, program: str, name: str, code: int) -> str:
        """Verifies the file of the published vector `name`."""
        files = json.loads(VECTORS.read_text(encoding="utf-8"))["files"]
        vector = next(file for file in files if file["name"] == name)
        folder = pathlib.Path(self.folder.name)
        (folder / "records").write_bytes(bytes.fromhex(vector["records"]))
        (folder / "key").write_text(vector["keys"][0], encoding="utf-8")
        (folder / "seeds").write_text("\n".join(vector["seeds"]), encoding="utf-8")
        return run(program, *(str(folder / file) for file in ("records", "key", "seeds")), code=code)

    def test_receipts_are_verified(self) -> None:
        program = f"{self.built}/verify"
        self.assertEqual(self.verified(program, "two_chains", 0), "6 receipts, 6 signed, 6 drawn\n")
        differs = self.verified(program, "other_kept_token", 4)
        self.assertRegex(differs, r"^2 receipts, 2 signed, 1 drawn\nwrong_token: ")
        self.assertRegex(self.verified(program, "other_key", 4), r"\nunknown_key: ")

    def test_client_has_no_server_in_it(self) -> None:
        symbols = run("nm", "--demangle", f"{self.built}/worker")
        self.assertIn("sortition::client::Client::Step", symbols)
        self.assertEqual(sorted(set(match[0] for match in SERVER.finditer(symbols))), [])
        self.assertRegex(run("nm", "--demangle", f"{self.built}/local"), SERVER)
        libraries = run("ldd", f"{self.built}/worker")
        self.assertRegex(libraries, r"libgrpc\+\+\.so")
        self.assertNotRegex(libraries, r"libvulkan|prometheus|sortition")

    def test_pkg_config_builds_all(self) -> None:
        (found,) = pathlib.Path(self.prefix).rglob("sortition-client.pc")
        for program, package in (("worker", "sortition-client"), ("local", "sortition-in-process"),
                                 ("verify", "sortition-receipts")):
            flags = run("pkg-config", "--cflags", "--libs", package, PKG_CONFIG_PATH=str(found.parent)).split()
            with self.subTest(program):
                source = str(SOURCE / f"{program}.cc")
                run(COMPILER, "-std=c++20", "-o", f"{self.folder.name}/{program}", source, *flags)
        self.assertRegex(run(f"{self.folder.name}/local"), r"^tokens (\d) \1\n$")
        self.assertIn("6 drawn", self.verified(f"{self.folder.name}/verify", "two_chains", 0))


if __name__ == "__main__":
    sys.exit(unittest.main())
