"""The import graph: layers import downwards only, without cycles, and nothing imports a command."""

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Bottom to top, as in docs/design.md. Packages of one layer may import each other, without cycles.
LAYERS = [
    {
        "files",
        "errors",
        "config",
        "console",
        "environment",
        "lengths",
        "measure",
        "parallel",
        "records",
        "seeds",
        "user_code",
    },
    {"text"},
    {"attention"},
    {"model", "losses", "data", "augmentation", "lm", "preparation"},
    {"search", "scoring"},
    {"transcription"},
    {"training", "recognizer"},
    {"experiment", "report"},
    {"library"},
    {"commands", "cli", "__main__"},
]
# It offers functions of asr/library, on first use.
UP = ("asr",)


def modules(package: str) -> dict[str, Path]:
    """Return the files of a package's modules by dotted name."""
    files = (ROOT / package).rglob("*.py")
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }


@functools.cache
def statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return a file's imports, including those inside functions and for type checkers."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return the imports among modules."""
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in statements(path):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & known.keys()
            elif node.module:
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    graph[name] |= {target if target in known else node.module} & known.keys()
    return {name: targets - {name} for name, targets in graph.items()}


def layer(module: str) -> int | None:
    parts = module.split(".")
    found = [i for i, names in enumerate(LAYERS) if len(parts) > 1 and parts[1] in names]
    return found[0] if found else None


def test_every_module_that_is_imported_exists() -> None:
    """The type checker ignores missing modules, because many libraries have no types: ours, too."""
    ours = ("asr", "attention_ext", "recipes")
    known = {name for package in ours for name in modules(package)} | set(ours)
    files = [path for package in (*ours, "tests", "tools") for path in modules(package).values()]
    for path in files:
        for node in statements(path):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [x.name for x in node.names]
            for name in named:
                assert name.partition(".")[0] not in ours or name in known, f"{path}: {name}"


def test_there_is_no_cycle() -> None:
    for package in ("asr", "attention_ext", "recipes"):
        try:
            TopologicalSorter(imports(modules(package))).prepare()
        except CycleError as error:
            raise AssertionError(f"{package}: {' → '.join(error.args[1])}") from None


def test_every_module_belongs_to_a_layer() -> None:
    assert [name for name in modules("asr") if name != "asr" and layer(name) is None] == []


def test_imports_point_down() -> None:
    upward = [
        f"{name} → {target}"
        for name, targets in imports(modules("asr")).items()
        for target in targets
        if name not in UP and (layer(target) or 0) > (layer(name) or 0)
    ]
    assert upward == []


def test_data_know_neither_model_nor_loss() -> None:
    for name, targets in imports(modules("asr")).items():
        if name.startswith("asr.data"):
            assert not {x for x in targets if x.startswith(("asr.model", "asr.losses"))}, name


def test_packages_import_in_one_direction() -> None:
    graph = imports(modules("asr") | modules("attention_ext") | modules("recipes"))
    for name, targets in graph.items():
        # Not even a command: what two share belongs to the library. asr/cli.py loads them by name.
        assert not {x for x in targets if x.startswith("asr.commands.")}, name
        if name.startswith("attention_ext"):
            assert not {x for x in targets if not x.startswith("attention_ext")}, name
        if name.startswith("asr"):
            assert not {x for x in targets if x.startswith("recipes")}, name


def test_options_import_options_errors_and_tables_of_names_only() -> None:
    """Ten recipes had their options beside their work: `asr prepare wsj --help` took 0.4 s."""
    tables = {"asr.training.budget", "recipes.questions.glue", "recipes.librispeech.parts"}
    tables |= {name for name in modules("asr") if name.startswith("asr.search.decoder")}
    graph = imports(modules("asr") | modules("recipes"))
    described = {name for name in graph if name.endswith(".options")}
    for name in described:
        others = graph[name] - described - tables - {"asr.files"}  # imported by a method, where it is used
        assert not {x for x in others if not x.startswith(("asr.config", "asr.errors"))}, name
    recipes = {name for name in graph if name.startswith("recipes.") and name.endswith(".prepare")}
    assert {f"{name.removesuffix('.prepare')}.options" for name in recipes} <= described


def test_few_modules_lie_beside_the_packages() -> None:
    assert len(list((ROOT / "asr").glob("*.py"))) <= 12


@pytest.mark.slow
def test_recognition_and_the_plan_of_a_comparison_do_not_import_lightning() -> None:
    """Importing Lightning took more than half of the start of `asr transcribe` and `asr compare`."""
    commands = "asr.commands.decode, asr.commands.transcribe, asr.commands.compare"
    code = f"import sys, {commands}; print({{'lightning', 'altair', 'jinja2'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
