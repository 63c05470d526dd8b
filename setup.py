"""Installs the packages and builds the compiled attention kernels where possible.

conf/ and recipes/ are installed as asr_conf and asr_recipes. The kernels are one library per device, with
operators on PyTorch's stable ABI and no Python code: it works with every Python and every torch from 2.11 on.
If a library cannot be built, the installation still succeeds; the reason goes into attention_ext/build.json,
which `attention_ext.why_unavailable` reads.

The C++ compiler is CXX, by default c++, with the options CXXFLAGS; it must be GCC 11 or later, whose vector
extensions the kernels use. With Clang (macOS's c++) and on Windows, the package is installed without kernels.
The CUDA library takes about 40 s of CPU time; it is built if nvcc (in CUDA_HOME or a standard place) and a
GPU are found, or with FORCE_CUDA=1, and never with FORCE_CUDA=0. TORCH_CUDA_ARCH_LIST defaults to
"8.0;9.0+PTX".
"""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

INSTALLED_NAME = {
    "asr": "asr",
    "attention_ext": "attention_ext",
    "conf": "asr_conf",
    "recipes": "asr_recipes",
}
SOURCES = Path("attention_ext")
OPERATORS = (
    "hashing",
    "kmeans",
    "key_grouping",
    "clustered_attention",
    "improved_clustered_attention",
    "lsh_attention",
    "local_attention",
    "near_attention",
)
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"  # torch 2.11
OLDEST_GPU = 80  # sm_80; older ones lack bfloat16 products
AVX2 = ["-mavx2", "-mfma", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
TILES = {"avx512_bf16": [*AVX512, "-mavx512bf16"]}
TILES["amx"] = [*TILES["avx512_bf16"], "-mamx-tile", "-mamx-bf16"]


class Unavailable(Exception):
    """A library cannot be built; the message gives the reason."""


def find_torch() -> Path:
    """Return torch's folder without importing torch; an isolated build finds the outer environment's."""
    spec = importlib.util.find_spec("torch")
    candidates = [Path(place) for place in spec.submodule_search_locations or []] if spec else []
    candidates += [Path(sysconfig.get_path(scheme)) / "torch" for scheme in ("purelib", "platlib")]
    for folder in candidates:
        if (folder / "include/torch/csrc/stable/library.h").is_file():
            return folder
    raise Unavailable(
        "torch was not installed when this package was built; "
        "run `pip install --no-build-isolation --force-reinstall --no-deps` on its source"
    )


def compile_objects(units: list[tuple[Path, str, list[str]]], folder: Path) -> list[str]:
    """Compile each (source, object name, command) unless its object is newer than all sources."""
    folder.mkdir(parents=True, exist_ok=True)
    headers = [*SOURCES.rglob("*.h"), *SOURCES.rglob("*.cu"), Path("setup.py")]
    newest = max(path.stat().st_mtime for path in headers)
    objects, commands = [], []
    for source, name, command in units:
        target = folder / f"{zlib.crc32(' '.join(command).encode()):08x}-{name}"  # other flags, other object
        objects.append(str(target))
        if not (target.is_file() and target.stat().st_mtime > max(newest, source.stat().st_mtime)):
            commands.append([*command, "-c", str(source), "-o", str(target)])
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(run, commands))  # list: raises the first failure
    return objects


def run(command: list[str]) -> None:
    """Run a compiler and print its output.

    Raises:
        Unavailable: the command failed; gives its first error line.
    """
    print(" ".join(command), flush=True)
    try:
        print(subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True).stderr, end="")
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        print(error.stderr)
        lines = [line for line in error.stderr.splitlines() if "error" in line] or ["no error message"]
        raise Unavailable(f"{command[0]} failed: {lines[0].strip()}") from None


def link(command: list[str], objects: list[str], torch: Path, libraries: list[str], target: Path) -> None:
    """Link a library against torch, which is loaded before it at run time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    names = [f"-l{library}" for library in libraries]
    run([*command, "-shared", *objects, f"-L{torch / 'lib'}", *names, "-o", str(target)])


def require_gcc(compiler: list[str]) -> None:
    """Raise Unavailable, with the reason in one line, where the kernels are known not to compile."""
    needed = "the kernels need GCC 11 or later; PyTorch's operations replace them"
    if sys.platform == "win32":
        raise Unavailable(f"{needed}, on Windows always")
    if shutil.which(compiler[0]) is None:
        raise Unavailable(f"no C++ compiler: {compiler[0]} was not found when this package was built")
    if "clang" in subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout:
        raise Unavailable(f"{needed}: {compiler[0]} is Clang; CXX names another compiler")


def build_cpu(torch: Path, objects_folder: Path, target: Path) -> None:
    """Build the CPU library: the operators once, the kernels once per instruction set."""
    compiler = os.environ.get("CXX", "c++").split()
    require_gcc(compiler)
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    flags = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi"]
    flags += ["-DATTENTION_EXT_X86"] if x86 else []
    flags += os.environ.get("CXXFLAGS", "").split()
    includes = [STABLE_ABI, "-isystem", str(torch / "include")]
    operators = ["schema.cpp", "cpu/choose.cpp", *(f"{operator}/cpu.cpp" for operator in OPERATORS)]
    # The longest come first, so that no core waits for one at the end.
    sets: dict[str, list[str]] = {**({"avx512": AVX512, "avx2": AVX2} if x86 else {}), "generic": []}
    units = [(SOURCES / "isa.cpp", f"isa_{name}.o", [*compiler, *flags, *isa]) for name, isa in sets.items()]
    for name, isa in TILES.items() if x86 else ():
        units.append((SOURCES / "tiles.cpp", f"{name}.o", [*compiler, *flags, *isa]))
    units += [
        (SOURCES / name, name.replace("/", "_") + ".o", [*compiler, *flags, *includes]) for name in operators
    ]
    units += [(SOURCES / "cpu/dispatch.cpp", "dispatch.o", [*compiler, *flags])]
    objects = compile_objects(units, objects_folder)
    link(compiler, objects, torch, ["torch_cpu", "c10"], target)


def find_nvcc() -> Path:
    """Return nvcc from a complete installation; nvcc on the PATH may be a wrapper without headers."""
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    homes = [Path(home) for home in [*named, "/usr/local/cuda"]]
    homes += [Path(on_path).resolve().parents[1]] if on_path else []
    for home in homes:
        if (home / "bin/nvcc").is_file() and (home / "include/cuda_runtime.h").is_file():
            return home / "bin/nvcc"
    raise Unavailable("no CUDA compiler was found when this package was built (nvcc, in CUDA_HOME)")


def gpu_is_here() -> bool:
    """Return whether an NVIDIA GPU is visible, without importing torch."""
    if Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists():
        return True
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def architecture_flags(wanted: str) -> list[str]:
    """Convert a list such as "8.0;9.0+PTX" to nvcc options; leave out GPUs older than the kernels support."""
    flags = []
    for entry in wanted.replace(" ", ";").split(";"):
        number = entry.removesuffix("+PTX").replace(".", "")
        if number and int(number.rstrip("af")) >= OLDEST_GPU:
            kinds = f"[sm_{number},compute_{number}]" if entry.endswith("+PTX") else f"sm_{number}"
            flags.append(f"-gencode=arch=compute_{number.rstrip('a')},code={kinds}")
    if not flags:
        raise Unavailable(f"TORCH_CUDA_ARCH_LIST={wanted}: the CUDA kernels need 8.0 or later")
    return flags


def build_cuda(torch: Path, objects_folder: Path, target: Path) -> None:
    """Build the CUDA library: all operators, for every requested architecture."""
    nvcc = find_nvcc()
    force = os.environ.get("FORCE_CUDA", "")
    if force == "0":
        raise Unavailable("FORCE_CUDA=0 was set when this package was built")
    if not force and not gpu_is_here():
        raise Unavailable(
            "no GPU was found when this package was built; `FORCE_CUDA=1 pip install` builds them without one"
        )
    if not (torch / "lib/libtorch_cuda.so").is_file():
        raise Unavailable("the installed torch has no CUDA")
    command = [str(nvcc), *architecture_flags(os.environ.get("TORCH_CUDA_ARCH_LIST") or "8.0;9.0+PTX")]
    if os.environ.get("CXX"):
        command += ["-ccbin", os.environ["CXX"].split()[0]]
    flags = ["-std=c++20", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden", "-DUSE_CUDA", STABLE_ABI]
    flags += ["-isystem", str(torch / "include")]
    units = [(SOURCES / "operators.cu", "cuda_operators.o", [*command, *flags])]
    objects = compile_objects(units, objects_folder)
    link([*command, "-cudart", "shared"], objects, torch, ["torch_cuda", "torch_cpu", "c10"], target)


def build_kernels(package: Path, objects: Path) -> None:
    """Build the libraries into a folder; record in its build.json why one could not be built."""
    package.mkdir(parents=True, exist_ok=True)
    for old in package.glob("kernels_*.so"):  # this build may produce fewer libraries
        old.unlink()
    reasons: dict[str, str | None] = {}
    for device, build in (("cpu", build_cpu), ("cuda", build_cuda)):
        try:
            build(find_torch(), objects, package / f"kernels_{device}.so")
            reasons[device] = None
        except Unavailable as error:
            reasons[device] = str(error)
            print(f"attention_ext is built without kernels for {device}: {error}")
    (package / "build.json").write_text(json.dumps(reasons) + "\n")


class BuildKernels(build_ext):
    """Builds the kernels as far as possible."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the library's path, without a Python version because it is not a Python module."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Build the libraries; a compiler error does not fail the installation."""
        build_kernels(Path(self.build_lib) / "attention_ext", Path(self.build_temp) / "attention_ext")

    def copy_extensions_to_source(self) -> None:
        """Copy the built files next to the sources, for an editable installation."""
        for built in self.get_outputs():
            # Replace rather than overwrite: a running program may have the library loaded.
            target = SOURCES / Path(built).name
            target.unlink(missing_ok=True)
            shutil.copy(built, target)

    def get_outputs(self) -> list[str]:
        """Return the built files."""
        package = Path(self.build_lib) / "attention_ext"
        return [
            str(path) for path in (*package.glob("kernels_*.so"), package / "build.json") if path.is_file()
        ]


class AnyPython(bdist_wheel):
    """Builds a wheel for this platform and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag py3-none-<platform>."""
        return "py3", "none", super().get_tag()[2]


def main() -> None:
    """Run setuptools."""
    folders = find_packages(include=[f"{folder}{tail}" for folder in INSTALLED_NAME for tail in ("", ".*")])
    packages = [
        ".".join([INSTALLED_NAME[head], *rest]) for head, *rest in (folder.split(".") for folder in folders)
    ]

    setup(
        packages=packages,
        ext_modules=[Extension("attention_ext.kernels", sources=[])],
        cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
    )


if __name__ == "__main__":
    main()
