import json
from contextlib import nullcontext

import pytest
from hypothesis_files import write_hypotheses
from score_output import printed, scored

from asr.errors import UserError
from asr.files import write_record
from asr.scoring.hypotheses import Hypothesis, write_decoded
from asr.scoring.options import ScoreOptions
from asr.scoring.run import rates_line, read_score, score_paths


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


def test_the_rates_that_asr_decode_prints(tmp_path):
    """The CER of a character model was not among them."""
    assert rates_line(make_folder(tmp_path / "phones")).startswith("PER 25.00 % (0.00 … 50.00), WER 50.00 %")
    letters = [Hypothesis("a", "anna", 1.0, "go on", None, list("go_on"), [0.1] * 5, "go un", "character")]
    (tmp_path / "letters").mkdir()
    write_hypotheses(tmp_path / "letters" / "hyp.jsonl", letters)
    assert rates_line(tmp_path / "letters").startswith("CER 20.00 %, WER 50.00 %")


def test_writes_score_alignments_and_speakers(tmp_path):
    record = json.dumps({"decode_s": 0.3, "audio_s": 3.0, "lexicon": "0123456789ab"})
    folder = make_folder(tmp_path / "greedy", record=record)
    text = printed([str(folder)], width=100)

    written = json.loads((folder / "score.json").read_text())
    assert written["per"]["rate"] == 2 / 8
    assert (written["per"]["substitutions"], written["per"]["deletions"]) == (1, 1)
    assert (written["per"]["insertions"], written["per"]["length"]) == (0, 8)
    assert written["per"]["interval"] == [0.0, 0.5]
    assert written["wer"]["rate"] == 2 / 4
    assert written["cer"]["length"] == 10
    assert (written["utterances"], written["audio_s"], written["decode_s"]) == (2, 3.0, 0.3)
    assert (written["lexicon"], written["alignment"]) == ("0123456789ab", "unit")

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

    for shown in ("0123456789ab", "25.00", "0.00 … 50.00", "[b]ob", "HYP: G ** AA M", "factor 0.100"):
        assert shown in text
    assert text.index("wrong  PER") < text.index("right  PER")


def test_columns_stay_aligned_on_a_narrow_terminal(tmp_path):
    text = printed([make_folder(tmp_path)], width=40)
    assert "HYP: G ** AA M" in text


def test_several_folders_and_a_hypothesis_file(tmp_path):
    one, two = make_folder(tmp_path / "one"), make_folder(tmp_path / "two")
    scores = scored([one, two / "hyp.jsonl"])
    assert len(scores) == 2
    assert (two / "score.json").read_text() == (one / "score.json").read_text()
    assert json.loads((one / "score.json").read_text())["decode_s"] is None
    assert "lexicon" not in json.loads((one / "score.json").read_text())


def test_several_models_of_characters_are_compared_by_both_rates(tmp_path):
    """The table had WER alone, the tests below it CER, too. Names stand in the table if it has room."""
    for name, found in (("one", "go un"), ("two", "gu on")):
        letters = [Hypothesis("a", "anna", 1.0, "go on", None, list("go_on"), [0.1] * 5, found, "character")]
        (tmp_path / name).mkdir()
        write_hypotheses(tmp_path / name / "hyp.jsonl", letters)
    folders = [tmp_path / "one", tmp_path / "two"]
    (heads,) = [line for line in printed(folders, details=False).splitlines() if "system" in line]
    assert heads.strip("┃ ").split() == ["system", "┃", "CER", "┃", "WER", "┃", "RTF"]
    assert "/one │ 20.00 │ 50.00 │" in printed(folders, details=False)
    assert "│ 1      │ 20.00 │ 50.00 │" in printed(folders, width=40, details=False)


def test_a_run_stands_for_what_it_has_decoded(tmp_path):
    """`asr score exp/demo/full` expected hypotheses in the run folder itself."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(UserError, match=f"{run}: expected hypotheses, found none: run asr decode {run}$"):
        score_paths([run], ScoreOptions())
    for name in ("full-beam", "full-greedy"):
        (run / "decode" / "dev").mkdir(parents=True, exist_ok=True)
        make_folder(tmp_path / "made")
        (tmp_path / "made").rename(run / "decode" / "dev" / name)
    assert len(score_paths([run], ScoreOptions())) == 2
    assert (run / "decode" / "dev" / "full-beam" / "score.json").exists()
    with pytest.raises(UserError, match="did you mean"):
        score_paths([tmp_path / "rum"], ScoreOptions())


def test_data_without_speakers_have_no_rates_by_speaker(tmp_path):
    """The table had a row for each utterance, whose id stands for its speaker."""
    assert "By speaker" in printed([make_folder(tmp_path / "named")])
    unnamed = [Hypothesis(name, name, 1.0, "go", None, [], [], "go", "piece") for name in ("u1", "u2")]
    write_hypotheses(tmp_path / "hyp.jsonl", unnamed)
    text = printed([tmp_path])
    assert "By speaker" not in text
    assert "no rates by speaker: the data name no speakers" in text


def test_the_number_of_worst_utterances_needs_details(tmp_path):
    """It had no effect."""
    with pytest.raises(UserError, match=r"save=x\.json: has no effect"):
        scored([make_folder(tmp_path)], save="x.json")


def test_sclite_files_on_request(tmp_path):
    folder = make_folder(tmp_path)
    scored([folder], trn=True)
    assert (folder / "hyp.trn").read_text().splitlines()[0] == "go on (anna-right)"


def test_ctm_of_phones_is_refused_and_leaves_the_score(tmp_path):
    """`ctm=true` failed for hypotheses without words, but only after it had deleted score.json."""
    phones = ["G", "OW"]
    hypotheses = [Hypothesis("a", "anna", 1.0, "go", phones, phones, [0.0, 0.1], None, "phone")]
    write_hypotheses(tmp_path / "hyp.jsonl", hypotheses)
    scored([tmp_path])
    before = (tmp_path / "score.json").read_text()
    with pytest.raises(UserError, match="utterance 'a': CTM and STM files need words"):
        scored([tmp_path], ctm=True)
    assert (tmp_path / "score.json").read_text() == before


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{}", "decode_s"),
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON, found .*nested too deeply"),
        ('{"decode_s": "x"}', "decode_s='x'"),
        ("[]", "expected a JSON file, found '"),
    ],
)
def test_the_error_for_a_broken_decode_json_names_the_file(tmp_path, record, message):
    with pytest.raises(UserError, match=message) as caught:
        scored([make_folder(tmp_path, record=record)])
    assert str(caught.value).startswith(str(tmp_path / "decode.json"))


ACCENTS = "café noir àé", "cafe\u0301\u00a0noir\u2009a\u0300e\u0301"
MARKS = "soft ware", "so\u00adft\u200b ware\ufeff"


@pytest.mark.parametrize("formats", [("jsonl",), ("txt", "txt"), ("trn", "trn")])
@pytest.mark.parametrize("texts", [ACCENTS, MARKS, (MARKS[1], MARKS[0])])
def test_forms_of_unicode_and_invisible_marks_are_no_errors(formats, texts, tmp_path):
    """A reference from a keyboard of one system and a hypothesis from another differed in every accent."""
    spoken, heard = texts
    if formats == ("jsonl",):
        write_hypotheses(
            tmp_path / "hyp.jsonl", [Hypothesis("u1", "s", 1.0, spoken, None, [], [], heard, "piece")]
        )
        paths = [tmp_path]
    else:
        paths = [tmp_path / f"hyp.{formats[0]}", tmp_path / f"ref.{formats[1]}"]
        contents = {
            "txt": [spoken, heard],
            "trn": [f"{heard} (u-1)", f"{spoken} (u-1)"],
        }
        for path, content in zip(paths, contents[formats[0]], strict=True):
            path.write_text(content + "\n", encoding="utf-8")
    (result,) = scored(paths, samples=1)
    assert {rate.counts.errors for rate in result.rates.values()} == {0}
    assert result.rates["wer"].counts.length == len(spoken.split())


def test_language_gives_the_pairs_of_upper_and_lower_case(tmp_path):
    write_hypotheses(
        tmp_path / "hyp.jsonl",
        [Hypothesis("u1", "s", 1.0, "ISPARTA İzmir", None, [], [], "ısparta izmir", "piece")],
    )
    for language, errors in {"tr": 0, "az": 0, "": 2}.items():
        (result,) = scored([tmp_path], samples=1, language=language)
        assert result.rates["wer"].counts.errors == errors
    for name, side in (("ref", "ISPARTA"), ("hyp", "ısparta")):
        (tmp_path / f"{name}.trn").write_text(f"{side} (u-1)\n", encoding="utf-8")
    (result,) = scored([tmp_path / "hyp.trn", tmp_path / "ref.trn"], samples=1, language="tr")
    assert result.rates["wer"].counts.errors == 0
    with pytest.raises(UserError, match="language=tr: has no effect with text=none"):
        ScoreOptions(language="tr", text="none").check()
    with pytest.raises(UserError, match="language=turkish: expected a code such as"):  # had no effect
        ScoreOptions(language="turkish").check()


def test_errors_name_file_and_utterance(tmp_path):
    with pytest.raises(UserError, match="nothing to score"):
        scored([])
    with pytest.raises(UserError, match=r"hyp.jsonl: expected a file of hypotheses"):
        scored([tmp_path])
    write_hypotheses(tmp_path / "hyp.jsonl", [])
    with pytest.raises(UserError, match=r"hyp.jsonl: expected hypotheses to score, found none"):
        scored([tmp_path])
    write_hypotheses(tmp_path / "hyp.jsonl", [Hypothesis("u7", "s", 1.0, None, None, [], [], "a", "piece")])
    with pytest.raises(UserError, match=r"hyp.jsonl: utterance 'u7': expected a reference"):
        scored([tmp_path])
    with pytest.raises(UserError, match="samples=0"):
        scored([tmp_path], samples=0)
    assert not (tmp_path / "score.json").exists()


def test_a_score_of_other_hypotheses_is_noticed(tmp_path):
    """Decoding other data under the same split's name left the old score.json beside the new hyp.jsonl."""
    folder = make_folder(tmp_path)
    scored([folder], trn=True, ctm=True)
    assert read_score(folder)["utterances"] == 2
    write_hypotheses(folder / "hyp.jsonl", [])
    with pytest.raises(UserError, match="found one of other hypotheses"):
        read_score(folder)
    write_decoded(folder, "", {"decode_s": 1.0})
    assert {path.name for path in folder.iterdir()} == {"hyp.jsonl", "decode.json", "lock"}


def test_scores_of_a_program_with_other_options_stay_usable(tmp_path):
    """Every score from before `text=` had `case` and would have to be made again."""
    write_hypotheses(tmp_path / "hyp.jsonl", [Hypothesis("u1", "s", 1.0, "go", None, [], [], "go", "piece")])
    scored([tmp_path])
    summary = read_score(tmp_path)
    for options, usable in (({"case": "lower"}, True), ({"text": "none"}, False)):
        write_record(summary | {"options": options}, tmp_path / "score.json")
        with nullcontext() if usable else pytest.raises(UserError, match="found one with text=none"):
            read_score(tmp_path)
