"""Runs the CPU kernels' tests on the sources for AVX-512 and AMX, with emulated vectors and tiles."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kernel_cases import instruction_sets

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# What a machine with AVX-512 but without AMX has to emulate, and what one without either has to.
TILES, KERNELS = ("tile",), ("grouping", "attention", "clustered", "lsh", "near", "tile")
# Tests that do not depend on the instruction set, and those on sets that the tests themselves run on.
LEFT_OUT = "not opcheck and not graph_breaks and not generic and not avx2"
RUN = """
import sys
from pathlib import Path
import pytest
from attention_ext import library
library.FOLDER = Path(sys.argv[1])
assert library.instruction_set() == "amx"
sys.exit(pytest.main(sys.argv[2:]))
"""


def build(build_once: Callable[..., Path]) -> Path:
    """Compile the operators, and the kernels with 64-byte vectors on AVX2; return the library's folder."""
    torch_folder = Path(torch.__file__).parent
    # -Og, because tiles of 12 × 2 emulated vectors spill: -O1 takes 45 s to compile, -O3 100 s.
    flags = ["-std=c++20", "-Og", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi", "-shared"]
    flags += ["-mavx2", "-mfma", "-mbmi2", "-DATTENTION_EXT_X86"]
    flags += ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-isystem", str(torch_folder / "include")]
    operators = ROOT / "attention_ext"
    sources = [HERE / "avx512_emulated.cpp", operators / "schema.cpp", operators / "cpu/choose.cpp"]
    sources += sorted(operators.glob("*/cpu.cpp"))
    flags += [*map(str, sources), f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]

    def compile(folder: Path) -> None:
        subprocess.run(["g++", *flags, "-o", str(folder / "kernels_cpu.so")], check=True)

    return build_once("avx512_emulated", "g++", flags, compile)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif("avx2" not in instruction_sets(), reason="needs the CPU kernels and AVX2")
@pytest.mark.skipif("amx" in instruction_sets(), reason="this machine runs the kernels' tests on AMX")
def test_the_kernels_tests_pass(build_once: Callable[..., Path]) -> None:
    """In a separate process, so that no other library is loaded; no test may be skipped."""
    folder = build(build_once)
    kernels = TILES if "avx512" in instruction_sets() else KERNELS
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", LEFT_OUT]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            RUN,
            str(folder),
            *options,
            *(str(HERE / f"test_{name}_kernels.py") for name in kernels),
        ],
        cwd=ROOT,
        env={**os.environ, "MALLOC_PERTURB_": "1"},  # fills new memory with garbage
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary
