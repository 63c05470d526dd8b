"""Options as dataclasses: parsing, composing, saving."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from quick import quick

from asr import config
from asr.config import option, options_of
from asr.config.given import values_of
from asr.errors import UserError
from asr.model.hub import local_folder
from asr.scoring.options import FOLDER, ScoreOptions
from asr.search.options import DecodePartOptions
from asr.training.config import train_options, train_options_from
from asr.training.options import TrainConfig, train_schema


@dataclass
class Inner:
    size: int = option(3, help="a size", affects="result", unit="frames")
    names: list[str] = option(["a"], help="names", affects="result")


@dataclass
class Numbers:
    rate: float | None = None
    rates: list[float] = field(default_factory=list)


@dataclass
class Outer:
    name: str = option("x", help="a name", affects="result")
    rate: float = option(0.5, help="a rate", affects="result")
    inner: Inner = field(default_factory=Inner)


def test_plain_data_are_those_of_omegaconf() -> None:
    """With the same types: an integer where a number is expected becomes one."""
    given = Outer("x", 2, Inner(names=["a", "b"])), Numbers(2, [1, 0.5]), Numbers()
    for options in (*given, train_options(["recipe=demo"]), ScoreOptions()):
        expected = OmegaConf.to_container(OmegaConf.structured(options), resolve=True)
        assert repr(config.to_dict(options)) == repr(expected)


def test_parse_reads_types_and_nested_keys() -> None:
    options = config.parse(Outer, ["name=8", "rate=2", "inner.size=7", "inner.names=[b,c]"])
    assert options == Outer("8", 2.0, Inner(7, ["b", "c"]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nmae=1", "unknown option 'nmae' (did you mean 'name'?)"),
        ("inner.size=many", "inner.size"),
        ("rate=fast", "rate=fast"),
    ],
)
def test_parse_errors_name_the_option(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace("?", r"\?").replace(")", r"\)")):
        config.parse(Outer, [override])


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("inner.names=full,lsh-1", ["full", "lsh-1"]),
        ("inner.names=full", ["full"]),
        ("inner.names=", []),
        ("inner.names=[]", []),
        ("inner.names=i-clustered-100:topk=32,bits=63,full", ["i-clustered-100:topk=32,bits=63", "full"]),
        ("inner.names=[lsh-4:chunk=16,buckets=8, full]", ["lsh-4:chunk=16,buckets=8", "full"]),
        ("inner.names=peer:lsh-4,full@2", ["peer:lsh-4", "full@2"]),
        ("inner.names=checkpoint=best,jobs=2", ["checkpoint=best", "jobs=2"]),
        ("inner.names=attention=lsh-4:chunk=16,jobs=2", ["attention=lsh-4:chunk=16", "jobs=2"]),
    ],
)
def test_lists_need_no_brackets(override: str, names: list[str]) -> None:
    """`attentions=full` ended with "str is not a ListConfig"; zsh expands brackets."""
    assert config.parse(Outer, [override]).inner.names == names
    assert config.parse(Ranged, ["sizes=3,4"]).sizes == [3, 4]


@pytest.mark.parametrize("written", ["data/𠮷野", "Grüße", 'a"b', "a\\b", "${x}", "\ufeff"])
def test_texts_survive_as_overrides(written: str) -> None:
    """YAML read characters beyond U+FFFF as two halves, which no file's name has."""
    [override] = config.as_overrides({"inner": {"names": [written, f"a {written} b"]}})
    assert config.parse(Outer, [override]).inner.names == [written, f"a {written} b"]


def test_control_characters_survive_as_overrides() -> None:
    codes = [*range(1, 32), *range(0x7E, 0xA1), 0x2028, 0x2029, 0xFFFE, 0xFFFF, 0x10FFFF]
    names = [f"a {chr(code)} b" for code in codes]
    assert config.parse(Outer, config.as_overrides({"inner.names": names})).inner.names == names


def test_values_of_python_are_taken_as_they_are() -> None:
    """They became text, YAML and OmegaConf. Text is read as on a command line."""
    options = config.parse(Outer, {"name": "8", "rate": 2, "inner.size": "7", "inner.names": ["a,b", "null"]})
    assert options == Outer("8", 2.0, Inner(7, ["a,b", "null"]))
    assert config.parse(Ranged, {"sizes": 3, "clip": None}) == Ranged(sizes=[3])
    for values, message in (
        ({"inner.size": 2.5}, r"inner\.size=2\.5: expected a whole number"),
        ({"name": None}, "name=null: expected text"),
        ({"inner.size": [1]}, r"inner\.size=\[1\]: expected a whole number"),
    ):
        with pytest.raises(UserError, match=f"^{message}"):
            config.parse(Outer, values)


def test_composed_lists_need_no_brackets() -> None:
    """A comma meant several runs."""
    for override in ("data.train=a b/x,c's.gz", "data.train=['a b/x',\"c's.gz\"]"):
        assert train_options(["recipe=demo", override]).data.train == ["a b/x", "c's.gz"]
    assert train_options(["optimizer.betas=0.8,0.9"]).optimizer.betas == [0.8, 0.9]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rate=fast", "rate=fast: expected a number"),
        ("inner.size=2.5", "inner.size=2.5: expected a whole number"),
        ("inner.size={a: 1}", "inner.size={a: 1}: expected a whole number"),
        ("inner.size=[", "inner.size=[: expected a whole number"),
    ],
)
def test_a_wrong_type_is_a_sentence(override: str, expected: str) -> None:
    """Messages named the classes of the configuration library: "could not be converted to Integer"."""
    with pytest.raises(UserError) as caught:
        config.parse(Outer, [override])
    assert expected == str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.layers=six"], "model.layers=six: expected a whole number"),
        (["optimizer.betas=a,b"], "optimizer.betas=a,b: expected a list of numbers, e.g. 1,2"),
        (["trainer.stop_at=soon"], "trainer.stop_at=soon: expected a number or null"),
    ],
)
def test_a_wrong_type_is_a_sentence_when_composing(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        train_options(overrides)
    assert expected == str(caught.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rate": "fast"}, "x.yaml: rate=fast: expected a number"),
        ({"inner": {"names": "a"}}, "x.yaml: inner.names=a: expected a list, e.g. a,b"),
        ({"inner": {"sise": 3}}, "x.yaml: unknown option 'inner.sise' (did you mean 'inner.size'?)"),
        ({"inner": 3}, "x.yaml: unknown option 'inner' (did you mean 'inner.size'?)"),
    ],
)
def test_a_wrong_file_is_a_sentence(values: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        config.from_dict(Outer, values, "x.yaml")
    assert expected == str(caught.value)


def test_a_dictionary_is_one_value() -> None:
    """The digests of a model's own code were taken for options, so that it could not be read."""

    @dataclass
    class Coded:
        code: dict[str, Any] = field(default_factory=dict)

    assert config.from_dict(Coded, {"code": {"nystrom": "1a"}}, "x.ckpt").code == {"nystrom": "1a"}
    assert config.from_stored(Coded, {"code": {"a.b": "1a"}, "gone": 1}, "x.ckpt").code == {"a.b": "1a"}


def test_options_that_the_program_has_lost_are_ignored_in_a_run() -> None:
    """Without an option that had been removed, no run of the version before could be reported or resumed."""
    found = config.from_stored(Outer, {"rate": 0.5, "gone": 1, "inner": {"sise": 3, "size": 4}}, "x.yaml")
    assert (found.rate, found.inner.size) == (0.5, 4)
    with pytest.raises(UserError, match=r"^x.yaml: unknown option 'inner'"):
        config.from_stored(Outer, {"inner": 3}, "x.yaml")


def test_describe_lists_every_option_with_its_unit() -> None:
    rows = {key: (default, text) for key, _, default, text, _ in config.describe(Outer)}
    assert rows["inner.size"] == ("3", "a size [frames]")
    assert set(rows) == {"name", "rate", "inner.size", "inner.names"}


def test_compose_selects_groups_and_accepts_unquoted_mechanism_names() -> None:
    options = train_options(
        ["recipe=demo", "model=wsj", "attention=i-clustered-25:topk=16,bits=31", "seed=3"]
    )
    assert options.recipe.name == "demo"
    assert options.model.layers == 9
    assert options.attention == "i-clustered-25:topk=16,bits=31"
    assert options.seed == 3


@pytest.mark.parametrize("override", ["attentoin=full", "model.layesr=3", "modle=tiny"])
def test_compose_suggests_the_nearest_key(override: str) -> None:
    with pytest.raises(UserError, match=r"did you mean '(attention|model.layers|model)'"):
        train_options([override])


def test_divide_separates_a_commands_options_from_training_options() -> None:
    overrides = ["rate=2", "model.layers=6", "inner.size=20", "model=wsj"]
    divided = config.divide(overrides, Outer, TrainConfig)
    assert divided == ({"rate": "2", "inner.size": "20"}, {"model.layers": "6", "model": "wsj"})
    for override, meant in (("inner.sise=20", "inner.size"), ("model.layesr=6", "model.layers")):
        with pytest.raises(UserError, match=f"did you mean '{meant}'"):
            config.divide([override], Outer, TrainConfig)


def test_compose_errors_name_the_group_or_option() -> None:
    with pytest.raises(UserError, match="model=huge: no such configuration"):
        train_options(["model=huge"])
    with pytest.raises(UserError, match=r"model\.layers"):
        train_options(["model.layers=six"])


def test_saved_options_are_restored(tmp_path: Path) -> None:
    options = train_options(["recipe=prompts", "data.workers=0"])
    config.save(options, tmp_path / "config.yaml")
    assert train_options_from(config.load_yaml(tmp_path / "config.yaml"), "config.yaml") == options


def test_a_path_in_the_home_folder_is_one_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`beam.lexicon=~/words.txt`, which no shell expands, and paths of YAML files had a folder `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    given = config.split_arguments(["~/run", "name=~/x", "rate=1", "inner.names=~/a,b"])
    assert given == ([f"{tmp_path}/run"], [f"name={tmp_path}/x", "rate=1", f"inner.names={tmp_path}/a,b"])
    read = config.parse(Outer, ["inner.names=a,~/b"])
    assert read.inner.names == ["a", f"{tmp_path}/b"]
    assert values_of({"name": Path("~/x")}, {"rate": 1}) == {"name": f"{tmp_path}/x", "rate": 1}
    (tmp_path / "mine.yaml").write_text("recipe: {name: mine}\ndata: {train: [~/train]}\nrun: ~/run\n")
    options = train_options(config.split_arguments(["recipe=~/mine.yaml", "attention=full"])[1])
    assert (options.data.train, options.run) == ([f"{tmp_path}/train"], f"{tmp_path}/run")
    assert local_folder("~/exp") == tmp_path / "exp"


def test_a_word_that_names_a_file_is_a_path(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.wav"
    odd.touch()
    assert config.split_arguments([str(odd), "split=test", "exp/demo"]) == (
        [str(odd), "exp/demo"],
        ["split=test"],
    )


@dataclass
class Ranged:
    share: float = option(0.5, help="a share", affects="result", maximum=1)
    sizes: list[int] = option([1, 2], help="sizes", affects="result", minimum=1)
    unit: str = option("phone", help="a unit", affects="result", choices=("phone", "character"))
    clip: float | None = option(None, help="a limit; null: none", affects="result", minimum=0.1)

    def check(self) -> None:
        if self.unit == "character" and self.share == 1:
            raise UserError("share=1 with unit=character")


@pytest.mark.parametrize("override", ["share=1", "share=0", "sizes=[1]", "sizes=[]", "clip=null", "clip=0.1"])
def test_values_within_their_range_are_accepted(override: str) -> None:
    config.parse(Ranged, [override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["share=1.01"], "share=1.01: expected a number 0 … 1"),
        (["share=nan"], "share=nan: expected a number 0 … 1"),
        (["sizes=[3,0]"], "sizes=0: expected a number ≥ 1"),
        (["sizes=[10000000000]"], "sizes=10000000000: expected a number 1 … 1000000000"),
        (["unit=letter"], "unit=letter: expected one of phone, character"),
        (["clip=inf"], "clip=inf: expected a number 0.1 … 1000000000"),
        (["unit=character", "share=1"], "share=1 with unit=character"),
    ],
)
def test_values_outside_their_range_are_errors(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config.parse(Ranged, overrides)
    assert str(caught.value) == message


def test_help_shows_ranges() -> None:
    kinds = {key: kind for key, kind, *_ in config.describe(Ranged)}
    assert kinds == {
        "share": "float 0 … 1",
        "sizes": "list[int] ≥ 1",
        "unit": "str",
        "clip": "float | None ≥ 0.1",
    }


RECIPES = [path.stem for path in sorted(Path("conf/recipe").glob("*.yaml"))]


# tiny sets the most options; switchboard_6 includes another file.
@pytest.mark.parametrize(
    ("recipe", "model"),
    quick(
        [*((recipe, "tiny") for recipe in RECIPES), ("librispeech", "switchboard_6")],
        lambda case: case[0] in ("demo", "wsj", "librispeech"),
    ),
)
def test_a_model_chosen_on_the_command_line_wins_over_the_recipes(recipe: str, model: str) -> None:
    """`recipe=librispeech model=tiny` trained 21.9 M parameters."""
    overrides = [f"recipe={recipe}", f"model={model}", "optimizer=radam"]
    options = train_options(overrides)
    assert options.model == train_options([f"model={model}"]).model
    assert options.optimizer == train_options(["optimizer=radam"]).optimizer
    changed = train_options([*overrides, "model.layers=7", "optimizer.betas=[0.5,0.6]"])
    assert changed.model == replace(options.model, layers=7)
    assert changed.optimizer == replace(options.optimizer, betas=[0.5, 0.6])


@pytest.mark.parametrize("value", ["7", "1", "0", "-2.5"])
def test_a_number_is_no_flag(value: str) -> None:
    """`resample=7` meant true."""

    @dataclass
    class Flags:
        resample: bool = option(True, help="a flag", affects="result")

    message = rf"{value}: expected true or false"
    with pytest.raises(UserError, match=f"resample={message}"):
        config.parse(Flags, [f"resample={value}"])
    with pytest.raises(UserError, match=rf"model\.attention_bias={message}"):
        train_options(["recipe=demo", f"model.attention_bias={value}"])
    assert config.parse(Flags, ["resample=false"]).resample is False


def test_a_path_with_a_null_character_is_refused() -> None:
    """`asr report` ended with a traceback."""
    with pytest.raises(UserError, match=r"'a\\x00b': expected no null character"):
        config.split_arguments(["a\0b", "split=test"])


def test_an_option_with_dashes_is_refused() -> None:
    """`asr decode <run> --split=test` answered that it takes one run folder and found two."""
    with pytest.raises(UserError, match="--split=test: options have no dashes: split=test"):
        config.split_arguments(["exp/run", "--split=test"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=ctc", "loss.order=4"], "^loss.order=4: has no effect with loss=ctc"),
        (["loss.intermediate=[2,2]"], r"^loss.intermediate=\[2, 2\]: expected each block once"),
        (["trainer.budget=3parsec"], "^trainer.budget='3parsec': expected a time"),
        (["run=null"], "^run=null: expected text; an empty one is written run="),
    ],
)
def test_an_error_names_the_option_as_it_is_typed(overrides: list[str], message: str) -> None:
    """They named `order`, `budget` and "configuration train"."""
    with pytest.raises(UserError, match=message):
        train_options(["recipe=demo", *overrides])


def test_an_option_without_what_it_affects_is_refused() -> None:
    with pytest.raises(TypeError, match="affects"):
        option(3, help="a size")  # type: ignore[call-arg]


def test_a_run_of_a_task_without_features_is_read_although_it_lacks_their_floor() -> None:
    """The floor that older runs have had was refused as an option without effect on language models."""
    schema = train_schema("language")
    found = config.from_dict(schema, {}, "config.yaml")
    assert found.features.floor != schema.features.floor


def test_stored_trainings_are_keyed_by_the_same_options_as_before() -> None:
    """Another key would throw finished work away: these were lists in five modules."""
    place = {
        "run",
        "resume",
        "trainer.checkpoint_every",
        "trainer.loggers",
        "augment.examples",
        "dry_run",
    }
    cost = {"data.workers", "trainer.accelerator", "trainer.threads"}
    trainer = "accumulate devices nodes average_best budget early_stopping keep_best max_epochs max_steps"
    plan = {f"trainer.{name}" for name in f"{trainer} stop_at validate_every".split()}
    assert set(config.affecting(TrainConfig, "place")) == place
    assert set(config.affecting(TrainConfig, "cost")) == cost
    assert set(config.affecting(TrainConfig, "plan")) == plan | {"optimizer.minimum_rate"}
    used = ["align", "samples", "seed", "text", "language", "word_filter"]
    assert config.affecting(ScoreOptions, "result", paths=FOLDER) == used


@dataclass
class Search:
    size: int = option(5, help="size", affects="result", only=("decoder", ("beam", "prefix")))
    lm: str = option("", help="model", affects="result")
    weight: float = option(1.0, help="weight", affects="result", only=("lm",))


@dataclass
class Decoder:
    decoder: str = option("greedy", help="decoder", affects="result")
    search: Search = options_of(Search, only=("whole", True))
    whole: bool = option(True, help="whole", affects="result")
    cuts: list[str] = option([], help="cuts", affects="result", only=("tasks", "squad"))
    tasks: list[str] = option([], help="tasks", affects="result")
    save: str = option("", help="file", affects="place", only=("paths", "folders"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["search.size=9"],
            "search.size=9: has no effect with decoder=greedy, only with decoder=beam | prefix",
        ),
        (["search.weight=0.5"], "search.weight=0.5: has no effect without search.lm"),
        (["whole=false", "search.lm=x"], "search.lm=x: has no effect without whole=true"),
        (["cuts=a,b", "tasks=rte"], "cuts=[a,b]: has no effect without tasks=squad"),
    ],
)
def test_an_option_without_effect_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config.parse(Decoder, overrides)
    assert str(caught.value) == message


def test_only_what_is_given_must_have_an_effect() -> None:
    """A recipe sets what some choices of the model ignore, and old runs may hold what is refused today."""
    assert train_options(["model=conformer"]).model.position_scale == 0.3
    with pytest.raises(UserError, match=r"^model.position_scale=0.5: has no effect with model.positions=r"):
        train_options(["model=conformer", "model.position_scale=0.5"])
    assert config.from_dict(Decoder, {"search": {"size": 9}}, "cell.json").search.size == 9
    config.parse(Decoder, ["decoder=beam", "search.size=9", "save=x"])  # the command knows its paths later
    with pytest.raises(UserError, match=r"^save=x: has no effect for a file, only for folders$"):
        config.check_effect(config.parse(Decoder, ["save=x"]), paths="a file")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=lf_mmi", "loss.name=ctc"], "loss.name=ctc: expected mmi with loss=lf_mmi"),
        (["loss.name=ctc", "loss=lf_mmi"], "loss.name=ctc: expected mmi with loss=lf_mmi"),
        (
            ["optimizer=radam", "optimizer.name=adamw"],
            "optimizer.name=adamw: expected radam with optimizer=radam",
        ),
    ],
)
def test_a_name_that_contradicts_its_group_is_refused(overrides: list[str], message: str) -> None:
    """`loss=lf_mmi loss.name=ctc` trained with CTC, and ignored the rest of the group without a word."""
    with pytest.raises(UserError) as caught:
        train_options(["recipe=demo", *overrides])
    assert str(caught.value) == message


def test_a_group_and_its_own_name_agree() -> None:
    assert train_options(["loss=lf_mmi", "loss.name=mmi"]).loss.topology == "hmm"
    assert train_options(["recipe=demo", "recipe.name=mine"]).recipe.name == "mine"


def test_help_shows_when_an_option_has_an_effect() -> None:
    shown = {x.key: x.help for x in config.describe(Decoder)}
    assert shown["search.size"] == "size; only with whole=true and with decoder=beam | prefix"
    assert shown["search.weight"] == "weight; only with whole=true and with search.lm"
    assert shown["save"] == "file; only for folders"


@pytest.mark.parametrize("text", ["a${b}", "${", "it costs ${…}", "\\${b}", "C:\\x", "${oc.env:HOME}", "1e3"])
def test_text_with_a_dollar_is_taken_as_it_is(text: str, tmp_path: Path) -> None:
    """`output='a${b}'` ended with a traceback; `${oc.env:…}` would have read the environment."""
    options = config.parse(Outer, [f"name={text}", f"inner.names={text},x"])
    assert (options.name, options.inner.names) == (text, [text, "x"])
    config.save(options, tmp_path / "x.yaml")
    assert config.from_dict(Outer, config.load_yaml(tmp_path / "x.yaml"), "x.yaml") == options


def test_a_place_with_a_reference_is_refused() -> None:
    """`asr train run='exp/${name}'` made a folder of that name."""
    with pytest.raises(UserError, match=r"^run=exp/\$\{name\}: expected a value without \$\{…\}"):
        train_options(["recipe=demo", "run=exp/${name}"])


def test_an_integer_beyond_all_floats_is_no_number() -> None:
    with pytest.raises(UserError, match=r"^rate=inf: expected a number 0"):
        config.parse(Outer, [f"rate={'1' * 400}"])
    with pytest.raises(UserError, match=r"^x\.yaml: rate=1+.*: expected a number$"):
        config.from_dict(Outer, {"rate": 10**400}, "x.yaml")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.layers=${seed}", "a whole number"),
        ("model.attention_bias=${x}", "true or false"),
        ("optimizer.betas=[${x},1]", "a list of numbers"),
        ("beam.lm_weight=${x}", "a number or null"),
    ],
)
def test_a_reference_is_no_number(override: str, expected: str) -> None:
    """Every option of a number, bool or optional value ended with OmegaConf's traceback."""
    with pytest.raises(UserError, match=f"^{re.escape(override)}: expected {expected}"):
        config.parse(DecodePartOptions if override.startswith("beam") else TrainConfig, [override])


@pytest.mark.parametrize(
    "override", ["run=su\udcff", "augment.noise=a\udcff", "data.train=a\udcff", "run=a\0b"]
)
def test_a_name_that_is_not_utf8_is_refused_at_once(override: str) -> None:
    """Training, comparison and decoding failed once they stored or showed the name, after the work."""
    with pytest.raises(UserError, match=r"(\\udcff|\\x00b)\]?: expected UTF-8 without null characters"):
        train_options(["recipe=demo", override])
    with pytest.raises(UserError, match=r"^init_from: expected a path in UTF-8, found 'a\\udcff'"):
        train_options(["recipe=demo", "init_from=a\udcff"])
    # What is written there doesn't name it.
    assert config.parse(DecodePartOptions, ["output=\udcff"]).output == "\udcff"


def test_a_group_in_place_of_its_options_names_some_of_them() -> None:
    """`asr train recipe=demo data=data/folder` was asked whether it meant `data.dev`."""
    with pytest.raises(UserError, match=r"unknown option 'data' \(a group: data\.train, data\.dev, "):
        train_options(["recipe=demo", "data=data/folder"])
