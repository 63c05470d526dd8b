import io
import json

import pytest
from rich.console import Console

from asr.commands.score import Options, run
from asr.errors import UserError
from asr.scoring.hypotheses import Hypothesis, write_hypotheses


def make_folder(folder, *, record=None):
    phones = ["G", "OW", "AA", "N"]
    hypotheses = [
        Hypothesis("right", "anna", 1.0, "go on", phones, phones, [0.0, 0.1, 0.2, 0.3], "go on", "phone"),
        Hypothesis(
            "wrong", "[b]ob", 2.0, "go on", phones, ["G", "AA", "M"], [0.0, 0.1, 0.2], "gone", "phone"
        ),
    ]
    write_hypotheses(folder / "hyp.jsonl", hypotheses)
    if record is not None:
        (folder / "decode.json").write_text(record)
    return folder


def printed(paths, options=None, width=100) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    run(paths, options or Options(), console=console)
    return console.export_text()


def test_writes_score_alignments_and_speakers(tmp_path):
    record = json.dumps({"decode_s": 0.3, "audio_s": 3.0, "lexicon": "0123456789ab"})
    folder = make_folder(tmp_path / "greedy", record=record)
    text = printed([str(folder)])

    written = json.loads((folder / "score.json").read_text())
    assert written["per"]["rate"] == 2 / 8
    assert (written["per"]["substitutions"], written["per"]["deletions"]) == (1, 1)
    assert (written["per"]["insertions"], written["per"]["length"]) == (0, 8)
    assert written["per"]["interval"] == [0.0, 0.5]
    assert written["wer"]["rate"] == 2 / 4
    assert written["cer"]["length"] == 10
    assert (written["utterances"], written["audio_s"], written["decode_s"]) == (2, 3.0, 0.3)
    assert written["lexicon"] == "0123456789ab"

    alignments = (folder / "alignments.txt").read_text()
    assert alignments.index("wrong") < alignments.index("right")
    assert "REF: G OW AA N\nHYP: G ** AA M\n       D     S\n" in alignments

    header, *rows = (line.split("\t") for line in (folder / "speakers.tsv").read_text().splitlines())
    table = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(row["speaker"], row["utterances"], row["per_errors"], row["wer_rate"]) for row in table] == [
        ("[b]ob", "1", "2", "1.0"),
        ("anna", "1", "0", "0.0"),
    ]
    assert not list(folder.glob("*.partial"))

    for shown in (
        "0123456789ab",
        "25.00",
        "0.00 … 50.00",
        "[b]ob",
        "HYP: G ** AA M",
        "real-time factor 0.100",
    ):
        assert shown in text
    assert text.index("wrong  PER") < text.index("right  PER")


def test_a_narrow_terminal_keeps_columns_together(tmp_path):
    text = printed([make_folder(tmp_path)], width=40)
    assert "HYP: G ** AA M" in text


def test_several_folders_and_the_file_itself(tmp_path):
    one, two = make_folder(tmp_path / "one"), make_folder(tmp_path / "two")
    scores = run([one, two / "hyp.jsonl"], Options(worst=0), console=Console(quiet=True))
    assert len(scores) == 2
    assert (two / "score.json").read_text() == (one / "score.json").read_text()
    assert json.loads((one / "score.json").read_text())["decode_s"] is None
    assert "lexicon" not in json.loads((one / "score.json").read_text())


def test_sclite_files_on_request(tmp_path):
    folder = make_folder(tmp_path)
    run([folder], Options(trn=True), console=Console(quiet=True))
    assert (folder / "hyp.trn").read_text().splitlines()[0] == "go on (anna-right)"


def test_words_go_through_the_recipe_filter(tmp_path):
    (result,) = run(
        [make_folder(tmp_path)],
        Options(),
        filter_words=lambda words: [word for word in words if word != "on"],
        console=Console(quiet=True),
    )
    assert result.rates["wer"].counts.length == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{}", "decode_s"),
        ("{", "expected decode_s"),
        ('{"decode_s": "x"}', "decode_s='x'"),
        ("[]", "expected decode"),
    ],
)
def test_a_broken_decoding_record_is_named(tmp_path, record, message):
    with pytest.raises(UserError, match=message) as caught:
        run([make_folder(tmp_path, record=record)], Options(), console=Console(quiet=True))
    assert str(caught.value).startswith(str(tmp_path / "decode.json"))


def test_what_cannot_be_scored_names_file_and_utterance(tmp_path):
    quiet = Console(quiet=True)
    with pytest.raises(UserError, match="asr score takes"):
        run([], Options(), console=quiet)
    with pytest.raises(UserError, match=r"hyp.jsonl: expected a file of hypotheses"):
        run([tmp_path], Options(), console=quiet)
    write_hypotheses(tmp_path / "hyp.jsonl", [])
    with pytest.raises(UserError, match=r"hyp.jsonl: expected hypotheses to score, found none"):
        run([tmp_path], Options(), console=quiet)
    write_hypotheses(tmp_path / "hyp.jsonl", [Hypothesis("u7", "s", 1.0, None, None, [], [], "a", "piece")])
    with pytest.raises(UserError, match=r"hyp.jsonl: utterance 'u7': expected a reference"):
        run([tmp_path], Options(), console=quiet)
    with pytest.raises(UserError, match="samples=0"):
        run([tmp_path], Options(samples=0), console=quiet)
    assert not (tmp_path / "score.json").exists()
