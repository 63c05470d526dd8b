"""Phones of reference words: which pronunciation is used, and how the words are counted."""

from pathlib import Path

import pytest

from asr.text.lexicon import Lexicon
from asr.text.pronunciation import ReferencePhones, WordCounts
from asr.text.tokenizer import PhoneTokenizer

MODEL = Lexicon(
    {"GO": [("G", "OW")], "ON": [("AA", "N"), ("AO", "N")], "TOO": [("T", "UW")], "[laughter]": [("LAU",)]}
)


def guess(word: str) -> tuple[str, ...]:
    return {"GOON": ("G", "UW", "N"), "KIT": ("K", "IH", "T")}.get(word, ())


def references(beside: dict[str, list[tuple[str, ...]]] | None = None, **model: object) -> ReferencePhones:
    lexicon = Lexicon({word: said for word, said in MODEL.pronunciations.items() if said != [("LAU",)]})
    return ReferencePhones(PhoneTokenizer(lexicon), Lexicon(beside or {}), **model)  # type: ignore[arg-type]


def test_the_first_source_that_knows_a_word_pronounces_it() -> None:
    spoken = references({"ON": [("G",)], "NO": [("N", "OW")], "GOON": [("G", "G")]}, guess=guess)
    assert spoken("ON NO GOON <NOISE>") == ["AA", "N", "N", "OW", "G", "G", "NSN"]
    assert references({"NO": [("N", "OW")]}, guess=guess)("GOON") == ["G", "UW", "N"]
    assert spoken.counts == WordCounts(words=3, model=1, data=2)


def test_pronunciations_with_phones_that_the_model_lacks_are_passed_over() -> None:
    spoken = references({"NO": [("N", "EY"), ("N", "AO")]}, guess=guess)
    assert spoken("NO KIT") == ["N", "AO", "SPN"]
    assert (spoken.counts.data, spoken.counts.none, dict(spoken.unknown)) == (1, 1, {"KIT": 1})


def test_words_are_not_guessed_for_a_model_with_other_phones() -> None:
    spoken = ReferencePhones(PhoneTokenizer(MODEL), guess=guess)  # LAU is no phone of CMUdict
    assert spoken("GOON [laughter] [noise]") == ["SPN", "LAU", "NSN"]
    assert spoken.counts == WordCounts(words=1, none=1)


@pytest.mark.parametrize("said", [{}, {"<NOISE>": [("N",)], "[noise]": [("SPN",)], "[laughter]": [("LAU",)]}])
def test_noises_are_trained_as_the_phones_of_the_reference(said: dict[str, list[tuple[str, ...]]]) -> None:
    """Outside the lexicon, `[noise]` was trained as SPN; in it, `<NOISE>` had no other phones than NSN."""
    tokenizer = PhoneTokenizer(Lexicon({"ON": [("AA", "N")]} | said))
    text = "ON <NOISE> [noise] [vocalized-noise] [laughter]"
    trained = tokenizer.tokens(tokenizer.encode(text))
    assert trained == ReferencePhones(tokenizer)(text)
    assert trained == ["AA", "N", *(["N", "SPN", "NSN", "LAU"] if said else ["NSN"] * 4)]
    assert tokenizer.oov(text) == []


def test_the_digest_covers_the_pronunciations_that_were_added() -> None:
    spoken = references({"NO": [("N", "OW")]})
    model = spoken.digest
    spoken("GO ON")
    assert spoken.digest == model
    spoken("NO")
    assert spoken.digest != model


@pytest.mark.parametrize(("none", "warned"), [(0, False), (2, False), (3, True)])
def test_a_warning_above_two_percent(none: int, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    WordCounts(words=100, model=100 - none, none=none).warn("here")
    assert ("here: 3.0 % of 100 words have no pronunciation" in caplog.text) is warned


def test_english_alone_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.text.pronunciation.installed_model", lambda: guess)
    tokenizer = PhoneTokenizer(Lexicon({"GO": [("G", "OW")], "ON": [("UW", "N")]}))
    for languages, g2p, phones in [
        (["en", None], True, ["G", "UW", "N"]),
        (["en", "de"], True, ["SPN"]),
        (["en"], False, ["SPN"]),
    ]:
        assert ReferencePhones.of_data(tokenizer, tmp_path, languages, g2p)("GOON") == phones
    (tmp_path / "lexicon.txt").write_text("GOON G OW N\n")
    assert ReferencePhones.of_data(tokenizer, tmp_path, ["en"], True)("GOON") == ["G", "OW", "N"]
