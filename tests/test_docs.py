"""README and docs: commands run, options and paths exist, tables match the code."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from runs import in_process

from asr import config
from asr.attention.table import mechanism_table, option_table
from asr.cli import main
from asr.commands import COMMANDS, command_module
from asr.experiment import launch
from asr.preparation.skeleton import write_recipe

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKDOWN = [*DOCS, *sorted((ROOT / "recipes").rglob("*.md"))]

# Options appended to the documented commands so that they take only seconds.
SMALL = {
    "prepare demo": "train_minutes=0.3 dev_minutes=0.1 test_minutes=0.1 test_voices_minutes=0.1 voices=2 "
    "unseen_voices=1 random_words=50 workers=1",
    "train": "trainer.max_steps=2 trainer.threads=1 trainer.accelerator=cpu trainer.devices=1 "
    "trainer.precision=fp32 data.workers=0 model.layers=1 model.subsampling=4 data.frames_per_batch=3000",
    "compare": "budget= steps=1 seeds=[0] trainer.threads=1 data.workers=0 model.layers=1 timing_repeats=1",
    "advise": "longest=64 rounds=1 seconds=0.1 attentions=[full,clustered-10]",
    "bench": "lengths=[64] batch=1 rounds=1 seconds=0.1 peak_memory=false",
    "decode": "jobs=1 device=cpu",
    "score": "samples=10",
    "align": "min_fit=0",
    "lm": "order=2",
}
# Arguments of commands that are parsed but not run, with what they need or the test that runs them.
NEEDS = {
    "attentions=full,lsh-1": "minutes; README's comparison differs from it in its mechanisms",
    "attentions=full,docs/examples": "tests/experiment/test_own_candidate.py compares and times one",
    "learning_rates=": "tests/experiment/test_rates.py",
    "lengths=512,1024,4096": "the next benchmark of docs/kernels.md differs in its lengths",
    "unit=layer": "tests/commands/test_bench.py",
    "trainer.devices=2": "processes; tests/training/test_ranks.py starts them",
    "data.train=shar": "lhotse's export; tests/data/test_shar.py trains on one",
    "sample_rate=8000": "tests/recipes/test_demo_recipe.py prepares one",
    "format=onnx": "tests/model/test_export_model.py exports them",
    "wsj": "a licensed corpus",
    "compare model=": "a trained model; tests/experiment/test_exchanged_phones.py runs one",
    "whisper": "a published model; tests/experiment/test_transcription.py runs a tiny one",
    "book": "a recording that the model fits; tests/commands/test_segment.py divides one",
    "figure=": "minutes; tests/commands/test_bench.py runs them small",
    "switchboard": "a licensed corpus",
    "facebook/": "a download",
    "format=transformers": "a fine-tuned model; tests/commands/test_published_models.py exports one",
    "format=sherpa-onnx": "a model of characters; tests/model/test_export_model.py exports one",
    "mixers.json": "stored results; tests/recipes/test_stored_results.py draws them",
    "launcher": "a cluster",
    "prompts": "a download",
}


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.S | re.M)
    return [block for name, block in fenced if name == language]


def commands(paths: list[Path]) -> list[str]:
    """Return the lines of shell examples that call `asr`, without comments."""
    text = "\n".join(block for path in paths for block in blocks(path.read_text(), "sh"))
    lines = (re.sub(r"\s+#.*", "", line) for line in text.replace("\\\n", " ").splitlines())
    return list(dict.fromkeys(" ".join(line.split()) for line in lines if line.startswith("asr ")))


@pytest.mark.parametrize("line", commands(MARKDOWN))
def test_commands_have_the_options_shown(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, name, *arguments = shlex.split(line)
    if "model.encoder=wav2vec2-base" in arguments:
        transformers = pytest.importorskip("transformers", reason="needs transformers")
        monkeypatch.chdir(tmp_path)
        transformers.Wav2Vec2Config().save_pretrained("wav2vec2-base")
        transformers.Wav2Vec2FeatureExtractor().save_pretrained("wav2vec2-base")
    if "nystrom.py" in line:  # was said to be in the working directory, where no clone has it
        monkeypatch.chdir(ROOT)
    if "./my_corpus" in line:
        monkeypatch.chdir(tmp_path)
        write_recipe(tmp_path / "my_corpus")
    assert name in COMMANDS
    paths, options = config.split_arguments(arguments)
    command = COMMANDS[name]
    parse = command.parse or getattr(command_module(name), "parse", None)
    if parse:
        parse(options)
        return
    schema = command.schema(paths)
    elsewhere = "folder=" if name == "prepare" else ()
    config.parse(schema, [option for option in options if not option.startswith(elsewhere)])


@pytest.mark.slow
def test_the_commands_of_readme_and_docs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Run them in one folder, in the order in which a reader would type them.

    `asr compare` runs its jobs in this process, and leaves the report to `asr report`.
    """
    pytest.importorskip("espeakng_loader", reason="needs the extra clustered-asr[demo]")
    monkeypatch.setattr(launch, "run_cells", in_process)
    monkeypatch.setattr("asr.library.write_report", lambda results, folder: folder)
    monkeypatch.chdir(tmp_path)
    save_ctc = pytest.importorskip("published_models").save_ctc  # skips without transformers
    asr("prepare demo", f"asr prepare demo {SMALL['prepare demo']}")
    recordings(tmp_path)
    save_ctc(tmp_path / "models" / "mine")
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    train = "asr train recipe=demo attention=full resume=auto"
    asr("bash tools/demo.sh", f"{train} {SMALL['train']}")  # the README's first command
    done = {"asr prepare demo", train}
    for line in commands(DOCS):
        if line in done or any(word in line for word in NEEDS):
            continue
        done.add(line)
        name = " ".join(line.split()[1:3])
        small = SMALL.get(name, SMALL.get(name.split()[0], ""))
        if " layers=" in line:  # it names what one layer would contradict
            small = small.replace("model.layers=1 ", "")
        if "exp/demo/finetuned" in line:
            small += " attention=clustered-25"
        if "decoder=beam" in line:
            small += " beam.size=5"
        asr(line, f"{line} {small}")
    capfd.readouterr()
    assert len(done) > 25


def asr(shown: str, line: str) -> None:
    assert main(shlex.split(line)[1:]) == 0, f"{shown}\n(run as: {line})"


def recordings(folder: Path) -> None:
    """Create the recordings that the documents name."""
    wavs = sorted((folder / "data" / "demo").rglob("*.wav"))
    (folder / "recordings").mkdir()
    for i, wav in enumerate(wavs[:30]):
        shutil.copy(wav, folder / "recordings" / f"{i}.wav")
        words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
        (folder / "recordings" / f"{i}.txt").write_text(f"{words[i % 10]} {words[i // 10]} {words[i % 7]}\n")
    table = "".join(
        f"{i}.wav\t{(folder / 'recordings' / f'{i}.txt').read_text()}" for i in range(len(wavs[:30]))
    )
    (folder / "transcripts.tsv").write_text(table)
    for name in ("recording.wav", "another.flac", "hour.wav", "talk.mp4"):
        shutil.copy(wavs[0], folder / name)  # the content determines the format


def test_python_examples_run() -> None:
    # tests/test_library.py runs docs/python.md; the Hub needs a download.
    examples = [x for path in DOCS if path.name != "python.md" for x in blocks(path.read_text(), "python")]
    elsewhere = ("exp/demo", "asr.train(", "facebook/")
    ran = [example for example in examples if not any(word in example for word in elsewhere)]
    assert len(ran) >= 3
    for example in ran:
        if "transformers_adapter" in example:
            pytest.importorskip("transformers", reason="the extra `transformers` is not installed")
        exec(example, {"__name__": "__main__"})


def test_the_table_of_mechanisms_matches_the_code() -> None:
    text = (ROOT / "docs" / "attention.md").read_text()
    for name, table in (("mechanisms", mechanism_table()), ("options", option_table())):
        shown = text.split(f"{name[:-1]}_table() -->\n")[1].split(f"<!-- /{name} -->")[0]
        assert shown.strip() == table.strip()


def test_the_example_of_a_mechanism_is_the_file() -> None:
    (shown,) = [x for x in blocks((ROOT / "docs" / "attention.md").read_text(), "python") if "Nystrom(" in x]
    assert shown == (ROOT / "docs" / "examples" / "nystrom.py").read_text()


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_exist(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", place.read_text(), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target
    for named in re.findall(r"`((?:asr|attention_ext|conf|recipes|tests|tools|docs)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), named


def test_the_tree_lists_all_folders() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    (tree,) = [block for block in blocks(design, "") if "attention_ext/" in block]
    inside = tree.partition("\nasr/\n")[2].partition("\nattention_ext/")[0]
    shown = {name for line in inside.splitlines() for name in re.findall(r"\b(\w+)/", line[:18])}
    packages = {place.parent.name for place in (ROOT / "asr").glob("*/__init__.py")}
    assert shown == packages


def test_every_dependency_is_listed() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    design = (ROOT / "docs" / "design.md").read_text().split("## Dependencies")[1]
    listed = re.search(r"^dependencies = \[(.*?)\]", project, flags=re.S | re.M)
    extras = re.search(r"^\[project\.optional-dependencies\]\n(.*?)^\[", project, flags=re.S | re.M)
    assert listed
    assert extras
    for name in re.findall(r'"([a-z0-9][\w-]+)', listed.group(1) + extras.group(1)):
        assert name in design or name == "clustered-asr", name


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 170
