"""The compiled library: symbols, loading, and the reasons given when it is unavailable."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_cases import needs_kernels

from attention_ext import library

ROOT = Path(__file__).parents[2]


def symbols(path: Path, *options: str) -> list[str]:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    return subprocess.run(
        ["nm", "-C", *options, str(path)], check=True, capture_output=True, text=True
    ).stdout.splitlines()


@pytest.mark.slow
@needs_kernels
def test_only_the_stable_abi_is_used() -> None:
    for path in library.FOLDER.glob("kernels_*.so"):
        undefined = symbols(path, "-D", "--undefined-only")
        assert any("torch_call_dispatcher" in line for line in undefined)
        assert not [line for line in undefined if any(name in line for name in ("at::", "c10::", "torch::"))]


@needs_kernels
@pytest.mark.skipif(platform.machine() != "x86_64", reason="one instruction set only")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
@pytest.mark.slow
def test_no_function_is_shared_between_instruction_sets(build_once: Callable[..., Path]) -> None:
    """The linker keeps one copy of a weak symbol, perhaps for an instruction set that this machine lacks."""
    flags = ["-std=c++20", "-O1", "-fPIC", "-DATTENTION_EXT_X86", "-mavx2", "-mfma", "-mbmi2"]
    flags += ["-c", str(ROOT / "attention_ext/isa.cpp")]

    def compile(folder: Path) -> None:
        subprocess.run(["c++", *flags, "-o", str(folder / "isa.o")], check=True)

    kinds = [line.split() for line in symbols(build_once("isa", "c++", flags, compile) / "isa.o")]
    assert not [parts for parts in kinds if parts[-2:][0] in ("W", "V", "u") or parts[1:2] in (["W"], ["V"])]


def test_import_does_not_load_torch() -> None:
    code = "import attention_ext, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_reasons_why_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    library.why_unavailable.cache_clear()
    try:
        assert "never built" in str(library.why_unavailable("cpu"))
        (tmp_path / "build.json").write_text(json.dumps({"cpu": "no C++ compiler", "cuda": "no nvcc"}))
        library.why_unavailable.cache_clear()
        assert library.why_unavailable("cpu") == "no C++ compiler"
        assert library.why_unavailable("cuda") == "no C++ compiler"
        assert "not for tpu" in str(library.why_unavailable("tpu"))
        with pytest.raises(RuntimeError, match="no compiled kernels for cpu: no C"):
            library.require("cpu")
        (tmp_path / "kernels_cpu.so").write_text("not a library")
        library.why_unavailable.cache_clear()
        assert "cannot be loaded" in str(library.why_unavailable("cpu"))
    finally:
        library.why_unavailable.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("no-such-compiler", "no C++ compiler: no-such-compiler was not found"), ("false", "false failed")],
)
def test_a_failed_build_records_the_reason(compiler: str, reason: str, tmp_path: Path) -> None:
    """The build succeeds without the kernels, so that the installation does too."""
    assert reason in reason_after_a_build(compiler, tmp_path)


def test_clang_is_refused_in_one_line(tmp_path: Path) -> None:
    """Clang lacks `__builtin_shuffle`: the reason was its first error, in the midst of a header."""
    clang = tmp_path / "c++"
    clang.write_text("#!/bin/sh\necho 'Apple clang version 17.0.0'\n")
    clang.chmod(0o755)
    assert f"{clang} is Clang; CXX names another compiler" in reason_after_a_build(str(clang), tmp_path)


def reason_after_a_build(compiler: str, tmp_path: Path) -> str:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path / "lib")]
    subprocess.run(
        [*command, "--build-temp", str(tmp_path / "temp")],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "CXX": compiler},
    )
    built = tmp_path / "lib/attention_ext"
    assert not list(built.glob("*.so"))
    return str(json.loads((built / "build.json").read_text())["cpu"])
