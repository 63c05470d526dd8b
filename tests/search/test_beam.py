import builtins
import itertools
import math
import random

import pytest
import torch

from asr.errors import UserError
from asr.lm.arpa import write_arpa
from asr.lm.kneser_ney import estimate
from asr.search.beam import BeamSearch
from asr.search.decoder import Weights
from asr.search.decoders.beam import Beam
from asr.search.path import Word
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer, SentencePieceTokenizer, Tokenizer

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

LEXICON = Lexicon(
    {
        "THE": [("DH", "AH"), ("DH", "IY")],
        "A": [("AH",)],
        "CAT": [("K", "AE", "T")],
        "KAT": [("K", "AE", "T")],
        "CATS": [("K", "AE", "T", "S")],
        "SAT": [("S", "AE", "T")],
    }
)
TOKENIZER = PhoneTokenizer(LEXICON)


def posterior(labels: str, probability: float = 0.99, tokenizer: Tokenizer = TOKENIZER) -> torch.Tensor:
    """Return [1, T, V] log-probabilities with a peak at one label per frame; `_` is blank."""
    ids = [0 if label == "_" else tokenizer.symbols.index(label) for label in labels.split()]
    rest = math.log((1 - probability) / (len(tokenizer) - 1))
    log_probs = torch.full((1, len(ids), len(tokenizer)), rest)
    log_probs[0, torch.arange(len(ids)), torch.tensor(ids)] = math.log(probability)
    return log_probs


def decode(labels: str, **options):
    log_probs = posterior(labels)
    return BeamSearch(TOKENIZER, **options)(log_probs, torch.tensor([log_probs.shape[1]]))[0]


def test_a_peaked_posterior_gives_its_words_tokens_and_times():
    path = decode("_ DH IY IY _ K _ AE AE T T T _ S AE _ T")
    assert path.text == "THE CAT SAT"
    assert TOKENIZER.tokens(path.ids) == ["DH", "IY", "K", "AE", "T", "S", "AE", "T"]
    assert path.frames == [1, 2, 5, 7, 9, 13, 14, 16]
    assert path.words == [Word("THE", 0, 2), Word("CAT", 2, 5), Word("SAT", 5, 8)]


def test_the_last_phone_of_a_word_may_last_several_frames():
    """Flashlight ends a word in the first frame of its last phone and can't stay on it. CAT with two frames
    of T became CATS until each pronunciation was also added with its last phone held.
    """
    for frames in range(1, 5):
        assert decode("_ K K AE AE " + "T " * frames + "_").text == "CAT"
        assert decode("_ K K AE AE " + "T " * frames + "S " * frames).text == "CATS"


def test_adjacent_words_with_the_same_phone_at_the_boundary():
    """With the last phone merely doubled, S _ S counted as one S, so the second word lost its first phone."""
    for frames in range(1, 4):
        path = decode("DH " + "AH " * frames + "_ " + "AH " * frames + "_ K AE T")
        assert path.text == "THE A CAT"
        assert path.frames[:3] == [0, 1, 2 + frames]
        path = decode("K AE T " + "S " * frames + "_ " + "S " * frames + "AE T")
        assert path.text == "CATS SAT"
        assert path.frames[3:5] == [3, 4 + frames]


@pytest.mark.parametrize("word_score", [-1.0, 1.0])
def test_a_word_of_one_phone_may_be_repeated(word_score):
    """AH _ AH was one A with a word score of 0 or less, because its phone was merely doubled to last longer,
    and flashlight allows a blank between the two.
    """
    for frames in range(1, 4):
        held = "AH " * frames
        assert decode(f"{held}_ {held}", word_score=word_score).text == "A A"
        assert decode(f"K AE T {held}_ {held}_ {held}S AE T", word_score=word_score).text == "CAT A A A SAT"
        assert decode(f"DH {held}", word_score=word_score).text == "THE"
        assert decode(f"{held}K AE T", word_score=word_score).text == "A CAT"


@pytest.mark.parametrize("word_score", [0.0, 1.0])
def test_each_word_has_its_own_labels(word_score):
    """Random posteriors made two words of a phone that a single run of it spelled."""
    words = {"A": [("AH",)], "I": [("AY",)], "OH": [("OW",)], "TIE": [("T", "AY")]}
    tokenizer = PhoneTokenizer(Lexicon(words))
    search = BeamSearch(tokenizer, beam=50, word_score=word_score)
    for seed in range(60):
        noise = torch.randn(1, 20, len(tokenizer), generator=torch.Generator().manual_seed(seed))
        (path,) = search((2 * noise).log_softmax(-1), torch.tensor([20]))
        spelled = [tuple(tokenizer.tokens(path.ids[word.start : word.end])) for word in path.words]
        assert all(labels in words[word.word] for labels, word in zip(spelled, path.words, strict=True))


def test_a_repeated_phone_needs_a_blank():
    """CATS SAT needs two S with a blank in between; here, there is only one."""
    path = decode("K AE T S S S AE T")
    assert path.text == "CAT SAT"
    assert TOKENIZER.tokens(path.ids) == ["K", "AE", "T", "S", "AE", "T"]


def test_a_phone_held_over_a_blank_counts_once():
    """In T _ T, where the first T is barely more probable than blank, both belong to one phone."""
    log_probs = posterior("K AE T T _ T")
    log_probs[0, 3, TOKENIZER.symbols.index("T")] = math.log(0.51)
    log_probs[0, 3, 0] = math.log(0.48)
    path = BeamSearch(TOKENIZER)(log_probs, torch.tensor([6]))[0]
    assert path.text == "CAT"
    assert TOKENIZER.tokens(path.ids) == ["K", "AE", "T"]
    assert path.frames == [0, 1, 2]


def test_a_misrecognised_phone_is_corrected_by_the_lexicon():
    path = decode("DH AH _ K IY T _")
    assert path.text == "THE CAT"
    assert TOKENIZER.tokens(path.ids) == ["DH", "AH", "K", "AE", "T"]


def test_padding_is_not_read():
    log_probs = posterior("K AE T _ S AE T")
    log_probs = torch.cat([log_probs, log_probs])
    log_probs[0, 3:] = torch.nan
    short, long = BeamSearch(TOKENIZER)(log_probs, torch.tensor([3, 7]))
    assert (short.text, long.text) == ("CAT", "CAT SAT")
    assert BeamSearch(TOKENIZER)(log_probs, torch.tensor([0, 0]))[0].text == ""


def test_random_sentences_are_found():
    rng = random.Random(0)
    words = [word for word in LEXICON if word not in ("KAT", "A")]
    search = BeamSearch(TOKENIZER)
    for _ in range(20):
        sentence = rng.choices(words, k=6)
        labels = []
        for word in sentence:
            for phone in rng.choice(LEXICON.pronunciations[word]):
                labels += [phone] * rng.randint(1, 3) + ["_"] * rng.randint(0, 2)
            labels.append("_")
        log_probs = posterior(" ".join(labels), 0.9)
        assert search(log_probs, torch.tensor([len(labels)]))[0].text == " ".join(sentence)


def exact_score(log_probs_TV: torch.Tensor, ids: list[int]) -> float:
    """Return the log-probability of the Viterbi path of a label sequence."""
    states = [0, *(state for index in ids for state in (index, 0))]
    best = [-math.inf] * len(states)
    best[0] = 0.0
    for frame, log_probs_V in enumerate(log_probs_TV.tolist()):
        before = best if frame else [0.0, 0.0] + [-math.inf] * (len(states) - 2)
        best = []
        for state, label in enumerate(states):
            skips = state >= 2 and label != 0 and label != states[state - 2]
            reach = (
                before[max(state - 2 if skips else state - 1, 0) : state + 1] if frame else before[state:][:1]
            )
            best.append(max(reach) + log_probs_V[label])
    return max(best[-2:])


@pytest.mark.slow
def test_the_score_equals_that_of_the_best_word_sequence():
    """Compares with all sentences of up to three words, on noisy posteriors. The decoder can't hold a last
    phone while blank is more probable and may then miss the best sentence: one miss in twelve is allowed.
    """
    generator = torch.Generator().manual_seed(0)
    rng = random.Random(0)
    search = BeamSearch(TOKENIZER)
    sentences = [words for count in range(1, 4) for words in itertools.product(LEXICON, repeat=count)]
    equal = 0
    for _ in range(12):
        labels = []
        for word in rng.choices(["THE", "CAT", "SAT"], k=2):
            for phone in LEXICON.first(word):
                labels += [phone] * rng.randint(1, 2) + ["_"] * rng.randint(0, 1)
        log_probs = posterior(" ".join(labels))
        log_probs = (log_probs + 2 * torch.randn(log_probs.shape, generator=generator)).log_softmax(-1)
        path = search(log_probs, torch.tensor([len(labels)]))[0]
        best = max(
            exact_score(log_probs[0], [TOKENIZER.symbols.index(phone) for phones in said for phone in phones])
            - len(words)
            for words in sentences
            for said in itertools.product(*(LEXICON.pronunciations[word] for word in words))
        )
        assert path.score <= best + 1e-4
        assert exact_score(log_probs[0], path.ids) - len(path.words) >= path.score - 1e-4
        equal += path.score == pytest.approx(best, abs=1e-4)
    assert equal >= 11


ARPA = """\\data\\
ngram 1=5
ngram 2=1

\\1-grams:
-1.0\t<unk>
-1.0\t<s>\t0.0
-1.0\t</s>
-3.0\tCAT
-0.1\tKAT

\\2-grams:
-0.1\t<s> KAT

\\end\\
"""


def test_a_language_model_chooses_among_homophones(tmp_path):
    lm = tmp_path / "bigram.arpa"
    lm.write_text(ARPA)
    assert decode("K AE T T").text == "CAT"
    assert decode("K AE T T", lm=lm).text == "KAT"


def test_nbest_hypotheses_have_different_words():
    (path,) = BeamSearch(TOKENIZER, nbest=4)(posterior("K AE T T _ S AE T", 0.7), torch.tensor([8]))
    hypotheses = [path, *path.alternatives]
    assert len({hypothesis.text for hypothesis in hypotheses}) == len(hypotheses) == 4
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert path.text == "CAT SAT"


def test_other_weights_share_the_lexicon():
    generator = torch.Generator().manual_seed(0)
    log_probs = posterior("K AE T _ S AE T", 0.6)
    log_probs += torch.randn(log_probs.shape, generator=generator)  # so that no hypotheses tie
    search = BeamSearch(TOKENIZER)
    for size, lm_weight, word_score in ((2, 1.0, -5.0), (300, 2.0, 3.0)):
        again = BeamSearch(TOKENIZER, beam=size, lm_weight=lm_weight, word_score=word_score)
        (shared,), (built,) = (
            decoder(log_probs, torch.tensor([7]))
            for decoder in (search.with_weights(Weights(lm_weight, word_score, size)), again)
        )
        assert shared == built
        assert shared.score == built.score
    assert search(log_probs, torch.tensor([7]))[0].score != shared.score


@pytest.fixture
def letters():
    """Return a tokenizer, and a function from a line of characters (`_`: blank) to its log-probabilities."""
    tokenizer = CharacterTokenizer.train(["go on goon so"])

    return tokenizer, lambda line: (posterior(" ".join(line), tokenizer=tokenizer), torch.tensor([len(line)]))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("ggo||on", "go on"),
        ("g_oo_|_oonn__", "go on"),
        ("go_o_n", "goon"),
        ("|go|", "go"),
        ("go_|_|on|so", "go on so"),
        ("gs|on", "go on"),
    ],
)
def test_characters_spell_words_of_a_list(letters, line, text):
    tokenizer, emissions = letters
    (path,) = BeamSearch(tokenizer, words=["go", "on", "goon", "so"])(*emissions(line))
    assert path.text == text
    for word in path.words:
        assert tokenizer.text(path.ids[word.start : word.end]) == word.word
    assert all(begin < end for begin, end in zip(path.frames, path.ends, strict=True))


@pytest.mark.parametrize(
    ("heard", "text"),
    [
        ("i n t o", "into"),
        ("i n _ t t o _", "into"),
        ("i n | t o", "in to"),
        ("| i n | | t o |", "in to"),
        ("o f f", "of"),
        ("o f _ f", "off"),
        ("o f _ f | o f", "off of"),
    ],
)
@pytest.mark.parametrize("topology", ["ctc", "hmm"])
def test_words_of_characters_end_with_a_gap_and_equal_letters_need_a_blank(heard, text, topology):
    """`into` became `in to` without a gap, and `of` became `off` without a blank."""
    words = ["in", "to", "into", "of", "off"]
    letters = CharacterTokenizer.train([" ".join(words)])
    log_probs = posterior(heard, 0.97, letters)
    if topology == "hmm":  # every frame is the first of its label, so equal letters are two
        heard = heard.replace("t t", "t _").replace("f f", "f _").replace("f _ f", "f f")
        first = posterior(heard, 0.97, letters)
        log_probs = torch.cat((first, torch.full_like(first[:, :, 1:], -20.0)), dim=2)
    (path,) = BeamSearch(letters, words=words, topology=topology)(
        log_probs, torch.tensor([log_probs.shape[1]])
    )
    assert path.text == text
    for word in path.words:
        assert letters.tokens(path.ids[word.start : word.end]) == list(word.word)
    assert path.ends[-1] <= log_probs.shape[1]


def test_the_last_phone_of_a_word_needs_a_blank_after_an_equal_one():
    """Flashlight doesn't require the blank at the end of a word."""
    lexicon = Lexicon({"ONE": [("AH", "K")], "TWO": [("AH", "K", "K")]})
    tokenizer = PhoneTokenizer(lexicon)
    for heard, text in (("AH K K", "ONE"), ("AH K _ K", "TWO"), ("AH K _ K K", "TWO")):
        log_probs = posterior(heard, tokenizer=tokenizer)
        (path,) = BeamSearch(tokenizer)(log_probs, torch.tensor([log_probs.shape[1]]))
        assert path.text == text


def test_pieces_spell_words_of_a_list():
    texts = ["go on", "on go", "no", "no go"]
    tokenizer = SentencePieceTokenizer.train(texts * 20, 8)
    ids = tokenizer.encode("no go on")
    log_probs = torch.full((1, 2 * len(ids), len(tokenizer)), -9.0)
    for position, label in enumerate(ids):
        log_probs[0, 2 * position, label] = log_probs[0, 2 * position + 1, 0] = 0.0
    (path,) = BeamSearch(tokenizer, words=["go", "no", "on"])(log_probs, torch.tensor([2 * len(ids)]))
    assert path.text == "no go on"
    assert path.ids == ids


def test_words_come_from_the_language_model(letters, tmp_path, caplog):
    tokenizer, emissions = letters
    write_arpa(estimate([["go", "on"], ["so", "go"], ["zoo"]], 2), tmp_path / "lm.arpa")
    search = BeamSearch(tokenizer, lm=tmp_path / "lm.arpa")
    assert search(*emissions("go|on"))[0].text == "go on"
    assert "can't write 1 of 4 words, which won't be recognised: zoo" in caplog.text


def test_different_casing_raises(letters, tmp_path):
    tokenizer, _ = letters
    write_arpa(estimate([["GO", "ON"], ["SO", "GO"]], 2), tmp_path / "upper.arpa")
    with pytest.raises(UserError, match="differ in case from the model's training texts"):
        BeamSearch(tokenizer, lm=tmp_path / "upper.arpa")
    write_arpa(estimate([["the", "cat", "sat"], ["a", "kat"], ["cats"]], 2), tmp_path / "lower.arpa")
    with pytest.raises(UserError, match=r"lower.arpa: .*differ in case from those of the lexicon"):
        BeamSearch(TOKENIZER, lm=tmp_path / "lower.arpa")


def test_errors_name_what_the_beam_search_cannot_use(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"none.arpa: expected an ARPA or KenLM file, found none"):
        BeamSearch(TOKENIZER, lm=tmp_path / "none.arpa")
    (tmp_path / "bad.arpa").write_text("no model\n")
    with pytest.raises(UserError, match=r"bad.arpa: expected an ARPA or KenLM file, found "):
        BeamSearch(TOKENIZER, lm=tmp_path / "bad.arpa")
    characters = CharacterTokenizer.train(["go on"])
    with pytest.raises(UserError, match=r"needs words to search for: set beam.lm or beam.lexicon"):
        BeamSearch(characters)
    with pytest.raises(UserError, match=r"can write none of its words \(ÄÖ\)"):
        BeamSearch(characters, words=["ÄÖ"])

    real_import = builtins.__import__

    def without_flashlight(name, *arguments, **keywords):
        if name.startswith("flashlight"):
            raise ImportError("No module named 'flashlight'")
        return real_import(name, *arguments, **keywords)

    (tmp_path / "good.arpa").write_text(ARPA)
    monkeypatch.setattr(builtins, "__import__", without_flashlight)
    for lm in (None, tmp_path / "good.arpa"):
        with pytest.raises(UserError, match="pip install 'flashlight-text"):
            BeamSearch(TOKENIZER, lm=lm)


@pytest.mark.parametrize(
    "options", [{"tokens": -5}, {"beam": 0}, {"threshold": float("nan")}, {"lm_weight": float("inf")}]
)
def test_options_that_abort_flashlight_are_refused(options):
    """`beam.tokens=-5` ended the process without a message."""
    with pytest.raises(UserError, match=r"BeamSearch: .*: expected"):
        BeamSearch(TOKENIZER, **options)


def test_log_probabilities_of_other_labels_are_refused():
    """Flashlight reads memory beyond the log-probabilities."""
    with pytest.raises(UserError, match=r"BeamSearch: expected [0-9]+ outputs, found 2"):
        BeamSearch(TOKENIZER)(torch.zeros(1, 3, 2), torch.tensor([3]))


def test_beam_lexicon_replaces_the_words_of_a_phone_model(tmp_path, caplog):
    """Phone models ignored `beam.lexicon` without a message."""
    path = tmp_path / "words.txt"
    path.write_text("CAT\nTASK T AE1 S K\nCAT K AE T S\nGNU\n")

    def text(labels):
        log_probs = posterior(labels)
        search = Beam(lexicon=str(path)).build(TOKENIZER)
        return search(log_probs, torch.tensor([log_probs.shape[1]]))[0].text

    assert text("K AE T _ T AE S K") == "CAT TASK"
    assert text("K AE T S _ S AE T") == "CAT CAT"
    assert "1 word has no pronunciation there or in the model's lexicon and won't be recognised: GNU" in (
        caplog.text
    )


def test_words_with_phones_that_the_model_lacks_are_counted(tmp_path, caplog):
    """A dictionary of the language was refused because a single word had a phone that the corpus lacks."""
    (tmp_path / "words").write_text("CAT K AE T\nTASK T AE S K\nGNU N UW\n")
    search = Beam(lexicon=str(tmp_path / "words")).build(TOKENIZER)
    assert list(search.vocabulary) == ["CAT", "TASK"]
    assert "1 word has phones that the model lacks and won't be recognised: GNU" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("CAT K AE T\nGNU N UW\n", r"words:2: expected phones of the model \(AE AH .* T\), found N UW"),
        ("GNU\n", "words: expected `word PH PH …` lines, or words of the model's lexicon, found GNU"),
        ("", "words: expected .*, found no words"),
    ],
)
def test_a_beam_lexicon_without_usable_words_is_refused(content, message, tmp_path):
    (tmp_path / "words").write_text(content)
    with pytest.raises(UserError, match=message):
        Beam(lexicon=str(tmp_path / "words")).build(TOKENIZER)
