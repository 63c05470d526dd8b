"""Runs the CPU kernels' tests on the operators compiled for aarch64, on an emulated processor."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
KERNELS = ("grouping", "attention", "clustered", "lsh", "near", "key_grouping")
# Tests that do not depend on the processor, tests of several threads, of which the emulated host has one, and
# those that take half of the time.
LEFT_OUT = (
    "not opcheck and not graph_breaks and not whole_tensor and not threads and not logits_of_thirty"
    " and not rescued_queries"
)
RUN = """
import sys
from pathlib import Path
import pytest, torch
from attention_ext import library
from emulated_library import EmulatedLibrary
library.FOLDER = Path(sys.argv[1])
(library.FOLDER / "kernels_cpu.so").touch()
torch.ops.load_library = lambda path: EmulatedLibrary([sys.argv[2], str(library.FOLDER / "host")], "generic")
assert library.instruction_set() == "generic"
sys.exit(pytest.main(sys.argv[3:]))
"""


def build(build_once: Callable[..., Path]) -> Path:
    """Compile the operators with a program that serves them instead of libtorch; return its folder."""
    flags = ["-std=c++20", "-O1", "-fno-math-errno", "-Wno-psabi", "-static"]
    includes = ["-isystem", str(Path(torch.__file__).parent / "include")]
    flags += ["-DTORCH_TARGET_VERSION=0x020b000000000000", *includes]
    operators = ROOT / "attention_ext"
    sources = [HERE / "emulated_host.cpp", operators / "isa.cpp", operators / "cpu/dispatch.cpp"]
    sources += sorted(operators.glob("*/cpu.cpp"))

    def compile(folder: Path) -> None:
        subprocess.run([COMPILER, *flags, *map(str, sources), "-o", str(folder / "host")], check=True)

    return build_once("aarch64", COMPILER, flags, compile)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER} (g++-aarch64-linux-gnu)")
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"needs {EMULATOR} (qemu-user-static)")
def test_the_kernels_tests_pass_on_aarch64(build_once: Callable[..., Path]) -> None:
    """`multiply_pairs` took every processor with 16-byte vectors for one with SSE2: nothing compiled."""
    folder = build(build_once)
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", LEFT_OUT]
    files = [str(HERE / f"test_{name}_kernels.py") for name in KERNELS]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), EMULATOR, *options, *files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout.splitlines()[-1]
