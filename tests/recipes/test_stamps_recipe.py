import csv

import numpy as np
import pytest
import soundfile
from asr_recipes.stamps import prepare as stamps
from asr_recipes.stamps.texts import groups, masked, read_texts, spoken, stamp_and_language, unusable

from asr.data.manifest import read_cuts
from asr.errors import UserError
from tests.recipes.pipeline import assert_shards_join

RATE = 48000  # the package has 44.1 kHz, which takes longer to resample
ANIMALS = ["cat", "dog", "owl", "fox", "hen", "pig", "cow", "bee", "ant", "bat"]
PLACES = ["sea", "hill", "lake", "wood"]


def write_tone(path, seconds=0.8, rate=RATE, channels=2, loud=0.3, seed=0):
    """A tone between pauses of 0.2 s; `seed` makes the bytes of a recording its own."""
    times = np.arange(round(seconds * rate)) / rate
    quiet = np.zeros(rate // 5)
    sound = np.concatenate([quiet, loud * np.sin(2 * np.pi * (300 + seed) * times), quiet])
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.stack([sound] * channels, axis=1), rate, format="OGG", subtype="VORBIS")


def add_stamp(root, name, english, seed, **texts):
    path = root / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [english, *(f"{language}.utf8={text}" for language, text in texts.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for language in texts:
        write_tone(root / f"{name}_desc_{language}.ogg", seed=seed + len(language + texts[language]))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A miniature of the package: 40 stamps in two languages, a family of letters, and each rule once."""
    folder = tmp_path_factory.mktemp("package")
    root = folder / "usr" / "share" / "tuxpaint" / "stamps"
    names = [(animal, place) for animal in ANIMALS for place in PLACES]
    for i, (animal, place) in enumerate(names):
        french, russian = f"{animal} {place} là", "да " * (1 + i % 3) + "нет " * (i % 5)
        add_stamp(
            root,
            f"{animal}/{place}",
            f"A {animal} by the {place}.",
            10 * i,
            fr=french,
            ru=russian + animal[0],
        )
    for i, letter in enumerate("abcdefgh"):
        add_stamp(
            root, f"letters/{letter}", f"The letter {letter}.", 1000 + 10 * i, fr=f"La lettre {letter}."
        )
    rules = {
        "digits": "Il y a 25 oiseaux",
        "brackets": "Un chat (noir)",
        "short": "des mots " * 12,
        "placeholder": "Un faucon",
        "silent": "Un silence",
    }
    for i, (name, text) in enumerate(rules.items()):
        add_stamp(root, f"rules/{name}", f"Rule {name}.", 2000 + 10 * i, fr=text)
    write_tone(root / "rules/placeholder_desc_fr.ogg", rate=8000, channels=1)
    write_tone(root / "rules/silent_desc_fr.ogg", loud=0.0)
    write_tone(root / "rules/untold_desc_fr.ogg", seed=3000)  # no text file
    add_stamp(root, "rules/penguin", "Tux.", 3010, ru="Это Linux")
    add_stamp(root, "rules/copy", "A cat by the sea, again.", 0, fr="cat sea là")
    one, two = root / "rules/this_desc_fr.ogg", root / "rules/that_desc_fr.ogg"
    add_stamp(root, "rules/this", "This.", 3020, fr="ceci")
    add_stamp(root, "rules/that", "That.", 3020, fr="cela")
    two.write_bytes(one.read_bytes())
    (root / "ant/untold_desc_fr.ogg").parent.mkdir(exist_ok=True)  # sorts before the copy that has a text
    (root / "ant/untold_desc_fr.ogg").write_bytes((root / "cat/sea_desc_fr.ogg").read_bytes())
    (root / "rules/copy_desc_fr.ogg").write_bytes((root / "cat/sea_desc_fr.ogg").read_bytes())
    return folder


def prepared(folder):
    return {split: list(read_cuts(folder / f"{split}.cuts.jsonl.gz")) for split in ["train", "dev", "test"]}


def stamp_of(cut):
    return cut.id.partition("-")[2]


@pytest.mark.slow
def test_miniature(source, tmp_path, capsys):
    folder = tmp_path / "stamps"
    options = stamps.Options(languages=["fr", "ru"], source=str(source), workers=1)
    stamps.prepare(options, folder)
    splits = prepared(folder)
    assert sum(map(len, splits.values())) == 2 * 40 + 8
    for cut in (cut for cuts in splits.values() for cut in cuts):
        assert cut.sampling_rate == 16000
        assert cut.duration == pytest.approx(1.0, abs=0.03)  # 0.1 s of silence is kept at both ends
        samples = cut.load_audio()
        assert samples.shape == (1, cut.num_samples)
        assert np.abs(samples).max() == pytest.approx(0.3, rel=0.2)  # mixed, not added
        (supervision,) = cut.supervisions
        assert supervision.language == supervision.speaker == cut.id[:2]
    excluded = list(csv.reader((folder / "excluded.tsv").open(encoding="utf-8"), delimiter="\t"))[1:]
    assert {row[0]: row[1] for row in excluded} == {
        "fr-rules-digits": "digits or signs",
        "fr-rules-brackets": "text in brackets",
        "fr-rules-short": "cut short: too many characters a second",
        "fr-rules-placeholder": "a placeholder: less than 16 kHz",
        "fr-rules-silent": "silence",
        "fr-rules-untold": "no text",
        "fr-ant-untold": "no text",
        "ru-rules-penguin": "words in another alphabet",
        "fr-rules-copy": "a copy of another recording",
        "fr-rules-this": "copies of the recording have other texts",
        "fr-rules-that": "copies of the recording have other texts",
    }
    capsys.readouterr()
    stamps.prepare(options, folder)
    assert "nothing to do" in capsys.readouterr().out
    (folder / "wav" / "fr" / "cat-sea.wav").write_bytes(b"")
    stamps.prepare(options, folder)
    assert "wav/fr/cat-sea.wav has changed" in " ".join(capsys.readouterr().out.split())


def test_a_stamp_is_in_one_split_whatever_the_languages(source, tmp_path):
    chosen = {}
    for languages in (["fr", "ru"], ["ru"]):
        folder = tmp_path / "-".join(languages)
        stamps.prepare(stamps.Options(languages=languages, source=str(source), workers=1), folder)
        for split, cuts in prepared(folder).items():
            assert cuts
            for cut in cuts:
                assert chosen.setdefault(stamp_of(cut), split) == split
    letters = {split for stamp, split in chosen.items() if stamp.startswith("letters-")}
    assert letters == {"train"}  # more stamps than LARGEST_GROUP share one phrase


@pytest.mark.slow
def test_joined_recordings_hold_every_word_of_their_split(source, tmp_path):
    options = stamps.Options(languages=["fr", "ru"], source=str(source), workers=1, joined_s=8)
    stamps.prepare(options, tmp_path)
    single = list(read_cuts(tmp_path / "test.cuts.jsonl.gz"))
    joined = list(read_cuts(tmp_path / "test_joined.cuts.jsonl.gz"))
    assert len(joined) < len(single) / 2
    assert all(1 < cut.duration <= 8 for cut in joined)
    for language in ["fr", "ru"]:
        words, joined_words = (
            sorted(
                word
                for cut in cuts
                if cut.supervisions[0].language == language
                for word in cut.supervisions[0].text.split()
            )
            for cuts in (single, joined)
        )
        assert words == joined_words
    first = joined[0]
    assert first.load_audio().shape == (1, first.num_samples)


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_it_has_converted(source, tmp_path, capsys):
    broken = source / "usr/share/tuxpaint/stamps/cat/sea_desc_fr.ogg"
    whole = broken.read_bytes()
    broken.write_bytes(b"OggS")
    options = stamps.Options(languages=["fr"], source=str(source), workers=1)
    with pytest.raises(UserError, match=r"cat/sea_desc_fr\.ogg: expected an audio file"):
        stamps.prepare(options, tmp_path / "out")
    broken.write_bytes(whole)
    capsys.readouterr()
    stamps.prepare(options, tmp_path / "out")
    assert "converting: reusing " in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_shards_are_joined(source, tmp_path):
    assert_shards_join(tmp_path / "data", "stamps", f"source={source}", "languages=[ru]", "joined_s=8")


def test_a_download_is_not_divided(tmp_path):
    with pytest.raises(UserError, match=r"shard=1/2: the download of source= can't be divided"):
        stamps.prepare(stamps.Options(shard="1/2"), tmp_path)


def test_user_errors_name_what_is_missing(source, tmp_path):
    def run(folder, languages):
        stamps.prepare(stamps.Options(languages=languages, source=str(folder)), tmp_path / "out")

    with pytest.raises(UserError, match="no: expected a folder, found none"):
        run(tmp_path / "no", ["fr"])
    with pytest.raises(UserError, match="expected the folder tuxpaint/stamps"):
        run(source / "usr" / "share" / "tuxpaint" / "stamps", ["fr"])
    with pytest.raises(UserError, match=r"expected some of ru, fr \(those recorded\)"):
        run(source, ["fr", "xx"])


def test_texts(tmp_path):
    path = tmp_path / "cat.txt"
    path.write_bytes(b"A cat.\r\nfr.utf8=Un chat.\r\nca@valencia.utf8=Un gat.\r\n")
    assert read_texts(path) == {"en": "A cat.", "fr": "Un chat.", "ca@valencia": "Un gat."}
    assert stamp_and_language("two_desc_of_desc_fr.ogg") == ("two_desc_of", "fr")
    assert stamp_and_language("photo_desc_da.ogg.ogg") == ("photo", "da")
    assert spoken("L’il·lusió: UB-art…") == "l'illusió ub art"
    assert masked("la letra ñ 12 x") == "la letra # # #"
    assert [unusable(x, "es") for x in ["«Hei» significa mitad…", "...", "Кот"]] == [
        "",
        "no text",
        "words in another alphabet",
    ]
    assert [unusable(x, "ru") for x in ["Буква F.", "Это «Linux»"]] == ["", "words in another alphabet"]


def test_stamps_that_share_a_phrase_in_any_language_are_one_group():
    texts = {
        "a": {"en": "A rose.", "fr": "Une fleur."},
        "b": {"en": "A tulip.", "fr": "Une fleur !"},
        "c": {"en": "A tulip.", "fr": "Une tulipe."},
        "d": {"en": "The letter D.", "fr": "La lettre D."},
        "e": {"en": "The letter E.", "fr": "La lettre É."},
        "f": {"en": "A fork.", "fr": "Une tulipe.", "it": "Una forchetta."},
    }
    assert groups(texts, ["en", "fr"]) == {"# fork": ["a", "b", "c", "f"], "the letter #": ["d", "e"]}
    assert groups(texts, ["en"])["# fork"] == ["f"]
