"""The CUDA kernels' own source, run thread by thread on the CPU, against the references."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attention_ext.hashing.reference import hash_sign
from attention_ext.kmeans.reference import hamming_kmeans

HERE = Path(__file__).parent
TURNS = (0, 1, 7)  # order in which threads get their turn: forwards, backwards, shuffled


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library attention_ext_emulated, loaded."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    torch_folder = Path(torch.__file__).parent
    library = tmp_path_factory.mktemp("emulated") / "emulated.so"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-Dattention_ext=attention_ext_emulated"]
    command = [compiler, *flags, "-DTORCH_TARGET_VERSION=0x020b000000000000", f"-I{HERE}"]
    command += ["-isystem", str(torch_folder / "include"), str(HERE / "cuda_emulated.cpp"), "-o", str(library)]
    subprocess.run([*command, f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"], check=True)
    torch.ops.load_library(library)
    return library


@pytest.fixture(params=TURNS)
def ops(request: pytest.FixtureRequest, emulated: Path) -> Iterator[object]:
    """The emulated operators, threads taking turns in one of several orders."""
    ctypes.CDLL(str(emulated)).emulation_order(request.param)
    torch.use_deterministic_algorithms(True)  # torch.empty then holds NaN and the largest integers
    yield torch.ops.attention_ext_emulated
    torch.use_deterministic_algorithms(False)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "bits"), [((2, 1, 65, 36), 63), ((1, 2, 7, 7), 5), ((1, 1, 0, 8), 9)])
def test_hashes(ops: object, shape: tuple[int, ...], bits: int, dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=generator(1)).to(dtype)
    planes = torch.randn(bits, shape[-1], generator=generator(2))
    assert torch.equal(ops.hash_sign(x, planes), hash_sign(x, planes))
    strided = torch.randn(*shape[:2], shape[3] + 3, shape[2], generator=generator(3)).to(dtype).mT[..., 1:-2]
    assert torch.equal(ops.hash_sign(strided, planes), hash_sign(strided, planes))


def test_hashes_next_to_a_plane(ops: object) -> None:
    """Products that float32 sums to the wrong sign: the kernel must notice and take them in float64."""
    planes = torch.randn(63, 64, generator=generator(5))
    x = torch.randn(1, 1, 500, 64, generator=generator(6))
    along = planes[torch.arange(500) % 63]
    x -= (x * along).sum(-1, keepdim=True) / (along * along).sum(-1, keepdim=True) * along
    exact = hash_sign(x, planes)
    single = torch.where(x @ planes.T > 0, 1 << torch.arange(63), 0).sum(-1)
    assert not torch.equal(single, exact)  # else this test shows nothing
    assert torch.equal(ops.hash_sign(x, planes), exact)


def random_hashes(shape: tuple[int, ...], bits: int) -> Tensor:
    return torch.randint(0, (1 << bits) - (bits == 63), shape, generator=generator(bits))


@pytest.mark.parametrize(("clusters", "iterations"), [(1, 2), (33, 4), (128, 3), (129, 3)])
def test_groups(ops: object, clusters: int, iterations: int) -> None:
    """Lengths 0, 1, C ± 1, all; several blocks; counters in shared and in global memory."""
    N = 1100
    lengths = torch.tensor([0, 1, clusters, clusters + 1, N])
    hashes = random_hashes((5, 1, N), 63)
    found = ops.hamming_kmeans(hashes, lengths, clusters, iterations, 63)
    assert torch.equal(found, hamming_kmeans(hashes, lengths, clusters, iterations, 63))


@pytest.mark.parametrize("bits", [1, 2, 7])
def test_groups_full_of_ties(ops: object, bits: int) -> None:
    hashes, lengths = random_hashes((2, 2, 300), bits), torch.tensor([300, 133])
    found = ops.hamming_kmeans(hashes, lengths, 40, 10, bits)
    assert torch.equal(found, hamming_kmeans(hashes, lengths, 40, 10, bits))
