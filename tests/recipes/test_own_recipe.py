"""Recipes and configurations outside the package: by folder, by file, and in a folder like conf/."""

import shutil
from pathlib import Path

import pytest
import soundfile
import yaml

from asr import cli, config
from asr.errors import UserError
from asr.files import file_state
from asr.preparation.recipes import preparation_module, preparation_options
from asr.preparation.skeleton import write_recipe
from asr.training.config import train_options
from tests.recipes.pipeline import assert_shards_join, train_decode_score


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the error of a command, which is one line."""
    capsys.readouterr()
    assert cli.main(list(arguments)) == 1
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.slow
def test_a_new_recipe_is_prepared_trained_and_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "recipe", "corpora/mine-2"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "asr prepare ./corpora/mine-2"
    assert cli.main(["prepare", "./corpora/mine-2"]) == 0
    score = train_decode_score("./corpora/mine-2/mine-2.yaml", "test")
    assert score["wer"]["length"] == 2
    assert yaml.safe_load(Path("exp/run/config.yaml").read_text())["recipe"]["name"] == "mine-2"
    assert cli.main(["prepare", "./corpora/mine-2/"]) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["on", "123", "1e3"])
def test_names_that_yaml_reads_otherwise_stay_names(here: Path, name: str) -> None:
    """Runs of the recipe `on` were written to exp/True."""
    write_recipe(here / name)
    assert yaml.safe_load((here / name / f"{name}.yaml").read_text())["recipe"]["name"] == name


def test_shards_of_an_own_recipe_join_where_its_folder_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only then: a shard's file must not choose code that runs."""
    write_recipe(here / "mine")
    assert_shards_join(here / "data", "./mine", merge_with=["./mine"])
    for shard in ("1/2", "2/2"):
        assert cli.main(["prepare", "./mine", f"shard={shard}", "folder=parts"]) == 0
    assert "unknown recipe 'mine': write ./mine for the folder" in one_line(capsys, "merge", "parts")
    for part in (here / "parts" / "shards").iterdir():
        part.write_text(part.read_text().replace('"recipe": "mine"', '"recipe": "./mine"'))
    assert "found './mine': name its folder, too" in one_line(capsys, "merge", "parts")


def test_worker_processes_import_an_own_recipe(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They import functions by name, which no module on Python's path has."""
    monkeypatch.setattr("asr.parallel.WORTH_A_POOL", 1)
    write_recipe(here / "mine")
    code = here / "mine" / "prepare.py"
    text = code.read_text().replace(
        "    prepare_rows(", "    check(corpus, folder, options)\n    prepare_rows("
    )
    code.write_text(text + WORK)
    (here / "mine" / "lengths.py").write_text("import soundfile\n\n\ndef length(path):\n" + LENGTH)
    assert cli.main(["prepare", "./mine", "workers=2"]) == 0
    assert Path("lengths.txt").read_text() == "[16000, 16000, 24000]"


WORK = """

from .lengths import length


def check(corpus: Path, folder: Path, options: Options) -> None:
    paths = sorted(map(str, corpus.glob("*.wav")))
    found = Preparation("mine", folder, options).map(length, paths, "reading")
    Path("lengths.txt").write_text(str(found))
"""
LENGTH = "    return soundfile.info(path).frames\n"


def test_edited_code_is_imported_again(here: Path) -> None:
    """A notebook prepares twice in one process; and folders of one name are different recipes."""
    write_recipe(here / "one" / "mine")
    write_recipe(here / "two" / "mine")
    code = here / "two" / "mine" / "prepare.py"
    code.write_text(code.read_text().replace("folder of the corpus", "another help"))
    first, second = (preparation_options(f"{here}/{name}/mine") for name in ("one", "two"))
    assert [x.corpus for x in (first(), second())] == [f"{here}/{x}/mine/recordings" for x in ("one", "two")]
    helps = [next(x.help for x in config.describe(schema) if x.key == "corpus") for schema in (first, second)]
    assert helps == ["folder of the corpus", "another help"]
    code.write_text(code.read_text().replace("another help", "a third one"))
    third = preparation_options(f"{here}/two/mine")
    assert next(x.help for x in config.describe(third) if x.key == "corpus") == "a third one"
    assert preparation_module(f"{here}/two/mine").Options is third


def test_a_recipe_may_have_its_options_beside_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the included ones have: help and completion then import options alone."""
    write_recipe(here / "mine")
    code = (here / "mine" / "prepare.py").read_text()
    options, rest = code.split("def prepare(")
    (here / "mine" / "options.py").write_text(options)
    (here / "mine" / "prepare.py").write_text("raise ValueError\ndef prepare(" + rest)
    assert cli.main(["prepare", "./mine", "--help"]) == 0
    assert "folder of the corpus" in capsys.readouterr().out
    assert cli.main(["completion", "words", "prepare", "./mine", "corp", "3"]) == 0
    assert capsys.readouterr().out.strip() == "corpus="


def test_broken_recipes_are_named_in_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "./none: expected a folder with prepare.py, found no folder" in one_line(
        capsys, "prepare", "./none"
    )
    write_recipe(here / "mine")
    assert "unknown option 'corpsu' (did you mean 'corpus'?)" in one_line(
        capsys, "prepare", "./mine", "corpsu=x"
    )
    code = here / "mine" / "prepare.py"
    text = code.read_text()
    code.write_text(text.replace("def prepare(", "def prepared("))
    assert f"{code}: expected a dataclass Options and a function prepare(options, folder)" in one_line(
        capsys, "prepare", "./mine"
    )
    code.write_text("import nosuch\n")
    assert f"{code}: ModuleNotFoundError: No module named 'nosuch'" in one_line(capsys, "prepare", "./mine")
    code.write_text("def prepare(:\n")
    assert f"{code}: SyntaxError: invalid syntax" in one_line(capsys, "prepare", "./mine")
    code.unlink()
    assert "found a folder without it" in one_line(capsys, "prepare", "./mine")
    assert "expected no such file or folder" in one_line(capsys, "new", "recipe", "mine")
    assert "asr new takes recipe <folder>, found recipe" in one_line(capsys, "new", "recipe")
    assert "expected a name of letters" in one_line(capsys, "new", "recipe", "a.b")


def own_configurations(folder: Path) -> Path:
    for name, text in (
        ("model/small.yaml", "layers: 2\nheads: 2\n"),
        (
            "recipe/mine.yaml",
            "defaults: {recipe: demo, model: small}\n",
        ),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.slow
def test_a_folder_adds_configurations(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = own_configurations(here / "own conf")
    path = f"configs=[{own}]"
    options = train_options(["recipe=mine", path, "model.heads=4"])
    assert (options.model.layers, options.model.heads) == (2, 4)
    assert options.data.train == ["data/demo"]
    assert train_options(["recipe=demo", f"configs={own}", "model=small"]).model.layers == 2
    (own / "model" / "small.yaml").write_text("layers: 3\n")  # in a notebook, say
    assert train_options(["recipe=mine", path]).model.layers == 3
    assert cli.main(["train", "--help", path]) == 0
    assert "mine" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"recipe=mien: no such configuration .did you mean 'mine'"):
        train_options(["recipe=mien", path])
    with pytest.raises(UserError, match="recipe=mine: no such configuration"):
        train_options(["recipe=mine"])
    (own / "recipe" / "demo.yaml").write_text("{}\n")
    with pytest.raises(UserError, match=r"demo\.yaml: expected another name, found that of"):
        train_options(["recipe=mine", path])
    for place, found in (("nosuch", "none"), (str(here), "a folder without them")):
        with pytest.raises(UserError, match=f"configs={place}: expected a folder with.*, found {found}"):
            train_options(["recipe=demo", f"configs=[{place}]"])


@pytest.mark.slow
def test_a_group_takes_a_file(here: Path) -> None:
    own = own_configurations(here)
    options = train_options(["recipe=demo", f"model={own}/model/small.yaml"])
    assert (options.model.layers, options.recipe.name) == (2, "demo")
    recipe = here / "any name.yaml"
    recipe.write_text("recipe: {name: mine}\ndefaults: {model: conformer}\nseed: 3\n")
    options = train_options([f"recipe={recipe}"])
    assert (options.recipe.name, options.seed, options.model.block) == ("mine", 3, "conformer")
    recipe.write_text("recipe: {name: mine}\nseed: 4\n")
    assert train_options([f"recipe={recipe}"]).seed == 4
    recipe.write_text("recipe: {name: copy, length: 7}\ndefaults: {recipe: copy}\n")
    assert train_options([f"recipe={recipe}"]).recipe.length == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: x\n", "seed"),
        ("sede: 1\n", "sede"),
        ("[1]\n", "expected options"),
        ("a: [\n", "expected YAML"),
        ("defaults: {model: nosuch}\n", "nosuch"),
        ("defaults: {modle: tiny}\n", "unknown group 'modle' .did you mean 'model'"),
        ("defaults: [model]\n", "defaults: expected configurations by group"),
        ("defaults: {recipe: ./mine.yaml}\n", "starts from this one"),
    ],
)
def test_a_file_that_does_not_fit_is_named(here: Path, text: str, message: str) -> None:
    recipe = here / "mine.yaml"
    recipe.write_text(text)
    with pytest.raises(UserError, match=rf"mine\.yaml.*{message}"):
        train_options([f"recipe={recipe}"])


def test_a_missing_file_is_named(here: Path) -> None:
    with pytest.raises(UserError, match=r"recipe=\./mine\.yaml: expected a YAML file, found none"):
        train_options(["recipe=./mine.yaml"])
    write_recipe(here / "mine")
    with pytest.raises(UserError, match=r"recipe=\./mine: .* found a folder: use recipe=mine/mine\.yaml"):
        train_options(["recipe=./mine"])


def test_the_skeleton_lists_what_it_leaves_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recipe(here / "mine")
    wav, table = here / "mine" / "recordings" / "noise.wav", here / "mine" / "recordings" / "transcripts.tsv"
    shutil.copy(wav.with_name("dev-1.wav"), wav)
    assert soundfile.info(wav).frames
    table.write_text(table.read_text() + "train\tspeaker1\tnoise.wav\t[noise]\n")
    assert cli.main(["prepare", "./mine"]) == 0
    assert "noise.wav\tno speech" in Path("data/mine/excluded.tsv").read_text()
    table.write_text(table.read_text() + "train\tnoise.wav\n")
    assert f"{file_state(table).split()[0]}:5: expected split, speaker, file and text" in one_line(
        capsys, "prepare", "./mine"
    )
