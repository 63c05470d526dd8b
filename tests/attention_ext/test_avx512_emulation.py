"""The AVX-512 kernels' own source, 64-byte vectors made of shorter ones, in the tests of all CPU kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_cases import instruction_sets

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = ("test_grouping_kernels.py", "test_attention_kernels.py", "test_lsh_kernels.py")
# These depend on no instruction set.
LEFT_OUT = "not opcheck and not graph_breaks and not errors_name"
RUN = """
import sys
from pathlib import Path
import pytest
from attention_ext import library
library.FOLDER = Path(sys.argv[1])
assert library.instruction_set() == "avx512"
sys.exit(pytest.main(sys.argv[2:]))
"""


def build(library: Path) -> None:
    """Compile the operators, and the kernels with 64-byte vectors for a machine that has 32-byte ones."""
    torch_folder = Path(torch.__file__).parent
    # -Og: 12 × 2 vectors in half as many registers of half the size keep -O1 busy for 45 s, -O3 for 100.
    flags = ["-std=c++20", "-Og", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi", "-shared"]
    flags += ["-mavx2", "-mfma", "-mbmi2", "-DATTENTION_EXT_X86"]
    flags += ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-isystem", str(torch_folder / "include")]
    operators = ROOT / "attention_ext"
    sources = [HERE / "avx512_emulated.cpp", operators / "schema.cpp", *sorted(operators.glob("*/cpu.cpp"))]
    links = [f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(library)]
    subprocess.run(["g++", *flags, *map(str, sources), *links], check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif("avx2" not in instruction_sets(), reason="needs the CPU kernels and AVX2")
@pytest.mark.skipif("avx512" in instruction_sets(), reason="the kernels' tests run AVX-512 itself here")
def test_the_kernels_tests_pass(tmp_path: Path) -> None:
    """In a process of its own, where no other library is loaded; nothing is skipped."""
    build(tmp_path / "kernels_cpu.so")
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", LEFT_OUT]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), *options, *(str(HERE / name) for name in TESTS)],
        cwd=ROOT,
        env={**os.environ, "MALLOC_PERTURB_": "1"},  # fresh memory holds huge numbers
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary
