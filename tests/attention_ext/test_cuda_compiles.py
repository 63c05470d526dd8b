"""The CUDA build, given nvcc: compiles for A100 and H100, links, loads, respects resource limits."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attention_ext import library

ROOT = Path(__file__).parents[2]
MOST_REGISTERS = 128  # two blocks of 256 threads fill a multiprocessor's registers
MOST_SPILLED_BYTES = 32
SHARED_BYTES = 48 * 1024  # available to a block by default


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """setup.py as a module."""
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("kernel_build", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_compiles_for_each_architecture(
    build: ModuleType,
    build_once: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    try:
        nvcc = str(build.find_nvcc())
    except build.Unavailable as error:
        pytest.skip(str(error))
    if not (Path(torch.__file__).parent / "lib/libtorch_cuda.so").is_file():
        pytest.skip("the installed torch has no CUDA")
    monkeypatch.setenv("FORCE_CUDA", "1")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Xptxas -v")
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)

    def compile(folder: Path) -> None:
        build.build_cuda(build.find_torch(), tmp_path / "objects", folder / "kernels_cuda.so")
        (folder / "report.txt").write_text(capfd.readouterr().out)

    folder = build_once("cuda", nvcc, [(ROOT / "setup.py").read_text()], compile)
    target, report = folder / "kernels_cuda.so", (folder / "report.txt").read_text()
    kernels = re.findall(
        r"for '(sm_\d+)'\n(?s:.*?)(\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*?Used (\d+) registers(.*)",
        report,
    )
    assert {architecture for architecture, *_ in kernels} == {"sm_80", "sm_90"}
    assert len(kernels) == report.count("Compiling entry function")
    for _, stores, loads, registers, rest in kernels:
        assert int(registers) <= MOST_REGISTERS
        assert int(stores) + int(loads) <= MOST_SPILLED_BYTES
        shared = re.search(r"(\d+) bytes smem", rest)
        assert shared is None or int(shared[1]) <= SHARED_BYTES

    if shutil.which("nm") is not None:
        undefined = subprocess.run(
            ["nm", "-D", "-C", "--undefined-only", str(target)], check=True, capture_output=True, text=True
        ).stdout
        assert "aoti_torch_get_current_cuda_stream" in undefined
        assert not [name for name in ("at::", "c10::", "torch::") if name in undefined]

    # Loading needs no GPU. A separate process, because operators stay registered.
    code = (
        "import sys, torch; torch.ops.load_library(sys.argv[1]); torch.ops.load_library(sys.argv[2]);"
        "has = torch._C._dispatch_has_kernel_for_dispatch_key;"
        "names = ['hash_sign', 'subtract_mean', 'hamming_kmeans', 'key_groups'];"
        "names += [a + '_attention' + b"
        " for a in ('clustered', 'improved_clustered', 'near') for b in ('', '_backward')];"
        "assert all(has('attention_ext::' + name, 'CUDA') for name in names)"
    )
    if library.why_unavailable("cpu") is None:
        signatures = library.FOLDER / "kernels_cpu.so"
        subprocess.run([sys.executable, "-c", code, str(signatures), str(target)], check=True)


def test_architectures(build: ModuleType) -> None:
    assert build.architecture_flags("8.0;9.0+PTX") == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    ]
    assert build.architecture_flags("8.6 12.0") == [
        "-gencode=arch=compute_86,code=sm_86",
        "-gencode=arch=compute_120,code=sm_120",
    ]
    # A list for many GPUs, as containers set it, cost the whole library: nvcc refused the oldest.
    assert build.architecture_flags("7.5 8.0") == ["-gencode=arch=compute_80,code=sm_80"]
    with pytest.raises(build.Unavailable, match=r"TORCH_CUDA_ARCH_LIST=7\.5: the CUDA kernels need 8\.0"):
        build.architecture_flags("7.5")


def test_other_flags_compile_again(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build for another GPU linked the object of the first."""
    commands: list[list[str]] = []

    def compile(command: list[str]) -> None:
        commands.append(command)
        Path(command[-1]).touch()

    monkeypatch.setattr(build, "run", compile)
    source = build.SOURCES / "operators.cu"
    for flag in ("-first", "-second", "-first"):
        build.compile_objects([(source, "cuda.o", ["nvcc", flag])], tmp_path)
    assert [command[1] for command in commands] == ["-first", "-second"]


def test_reasons_for_not_building(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason() -> str:
        with pytest.raises(build.Unavailable) as caught:
            build.build_cuda(build.find_torch(), tmp_path, tmp_path / "kernels_cuda.so")
        return str(caught.value)

    monkeypatch.setattr(build, "find_nvcc", lambda: Path("/nowhere/nvcc"))
    monkeypatch.setattr(build, "gpu_is_here", lambda: False)
    monkeypatch.delenv("FORCE_CUDA", raising=False)
    assert reason().startswith("no GPU was found when this package was built; `FORCE_CUDA=1 pip install`")
    monkeypatch.setenv("FORCE_CUDA", "0")
    assert reason() == "FORCE_CUDA=0 was set when this package was built"
    monkeypatch.undo()
    monkeypatch.setattr(build.os, "environ", {"PATH": ""})
    monkeypatch.setattr(build.Path, "is_file", lambda _: False)
    with pytest.raises(build.Unavailable, match="no CUDA compiler was found"):
        build.find_nvcc()


def test_missing_or_old_gpus_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library.why_unavailable("cpu") is not None:
        pytest.skip(str(library.why_unavailable("cpu")))
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "kernels_cuda.so").write_text("never opened")
    uncached = library.why_unavailable.__wrapped__
    monkeypatch.setattr(
        library, "why_unavailable", lambda device: None if device == "cpu" else uncached(device)
    )
    assert library.why_unavailable("cuda") == "PyTorch finds no CUDA GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: ((9, 0), (7, 5))[i])
    assert "need compute capability 8.0 or above on every GPU, found 7.5" in str(
        library.why_unavailable("cuda")
    )
