"""Code of the user's own: loaded by path or module name, with digests; every fault is one line."""

import sys
from pathlib import Path

import pytest

from asr.cli import main
from asr.config import user_code
from asr.errors import UserError
from asr.files import digest
from asr.parallel import in_new_process


def test_a_file_is_loaded_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "my_mixing.py"
    path.write_text("loads = []\nsize = 1\n")
    assert user_code.load(str(path)) == "my_mixing"
    first = user_code.module("my_mixing")
    assert user_code.load(str(path)) == "my_mixing"
    assert user_code.module("my_mixing") is first
    before = user_code.digests(["my_mixing", "other"])
    assert before == {"my_mixing": digest(path.read_bytes())}
    assert user_code.changed(before) == ""
    path.write_text("size = 2\n")  # within the same second, which a .pyc would miss
    user_code.load(str(path))
    assert vars(user_code.module("my_mixing") or first)["size"] == 2
    now = user_code.all_digests()["my_mixing"]
    expected = f"{path} has changed: its digest was {before['my_mixing']}, is now {now}"
    assert user_code.changed(before | {"missing": "0"}) == expected
    assert user_code.sources() == [str(path)]


def test_a_module_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    (tmp_path / "my_package" / "mixing.py").write_text("size = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert user_code.load("my_package.mixing") == "my_package.mixing"
    assert user_code.sources() == ["my_package.mixing"]
    assert user_code.all_digests() == {"my_package.mixing": digest(b"size = 3\n")}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("missing.py", None, r"missing\.py: expected a file with Python code, found none"),
        ("my-mixing.py", "", r"my-mixing\.py: expected a name of letters, digits and _"),
        ("wrong.py", "x = 1\ndef f(:\n", r"wrong\.py, line 2: SyntaxError: invalid syntax"),
        ("raises.py", "\n\nraise KeyError('x')\n", r"raises\.py: KeyError: no x \(raises\.py, line 3\)"),
        ("exits.py", "import sys\nsys.exit(3)\n", r"exits\.py: SystemExit: 3 \(exits\.py, line 2\)"),
        ("needs.py", "import nosuchthing\n", r"needs\.py: ModuleNotFoundError: No module named 'nosuch"),
        ("json.py", "", r"json\.py: the name json is that of another module, .*json.*; rename the file"),
        ("sys.py", "", r"sys\.py: the name sys is that of another module, built in; rename the file"),
        ("nosuchthing", None, r"nosuchthing: expected a module on Python's path, found none; .*\./nosuch"),
    ],
)
def test_a_fault_is_one_line(name: str, content: str | None, expected: str, tmp_path: Path) -> None:
    source = str(tmp_path / name) if name.endswith(".py") else name
    if content is not None:
        Path(source).write_text(content)
    modules = set(sys.modules)
    with pytest.raises(UserError, match=expected) as error:
        user_code.load(source)
    assert "\n" not in str(error.value)
    assert user_code.sources() == []
    assert set(sys.modules) == modules


def test_two_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    for folder, content in (("a", "size = 1\n"), ("b", "size = 2\n"), ("c", "size = 1\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my_mixing.py").write_text(content)
    user_code.load(str(tmp_path / "a" / "my_mixing.py"))
    user_code.load(str(tmp_path / "c" / "my_mixing.py"))  # the same code
    with pytest.raises(UserError, match=r"b/my_mixing\.py: the name my_mixing is that of .*a/my_mixing\.py"):
        user_code.load(str(tmp_path / "b" / "my_mixing.py"))


def test_another_process_loads_the_same_code(tmp_path: Path) -> None:
    (tmp_path / "my_mixing.py").write_text("size = 1\n")
    user_code.load(str(tmp_path / "my_mixing.py"))
    assert in_new_process(user_code.all_digests) == user_code.all_digests() != {}


def test_every_command_takes_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_mixing.py").write_text("print('loaded')\n")
    assert main(["--version", "--code", str(tmp_path / "my_mixing.py")]) == 0
    assert capsys.readouterr().out.startswith("loaded\n")
    assert main(["--version", "--code", str(tmp_path / "other.py")]) == 1
    assert "other.py: expected a file with Python code, found none" in capsys.readouterr().err
    assert main(["--version", "--code"]) == 1
