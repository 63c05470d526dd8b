"""Hotwords: the automaton and both searches against an oracle that looks at whole sequences."""

import itertools
import math
import random
from importlib.util import find_spec

import pytest
import torch
from test_prefix import EVERYTHING, brute_force, random_log_probs

from asr import config
from asr.errors import UserError
from asr.lm.arpa import write_arpa
from asr.lm.kneser_ney import estimate
from asr.search.beam import BeamSearch
from asr.search.decoder import Search, Weights
from asr.search.decoders import DECODERS
from asr.search.decoders.beam import Beam
from asr.search.decoders.prefix import Prefix
from asr.search.fusion import NoModel, build_fusion
from asr.search.hotwords import HotwordFusion, WordRewards
from asr.search.options import SearchOptions
from asr.search.path import TokenPath, text_of
from asr.search.phrases import PhraseGraph
from asr.search.prefix import PrefixSearch
from asr.text.g2p import installed_model
from asr.text.hotwords import Hotword, in_words_of, pronunciations, read_hotwords, writable
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer, SentencePieceTokenizer, VocabularyTokenizer

needs_flashlight = pytest.mark.skipif(not find_spec("flashlight"), reason="flashlight-text is not installed")
LEXICON = Lexicon(
    {
        "no": [("N", "OW")],
        "know": [("N", "OW")],
        "an": [("AE", "N")],
        "own": [("OW", "N")],
        "anno": [("AE", "N", "OW"), ("AA", "N", "OW")],
    }
)
PHONES = PhoneTokenizer(LEXICON)


def reward(tokens, boosts, weight=lambda token: 1.0):
    """The oracle: the sum over all tokens of the highest boost of the phrases that cover it."""
    own = [0.0] * len(tokens)
    for phrase, boost in boosts.items():
        for first in range(len(tokens) - len(phrase) + 1):
            if tuple(tokens[first : first + len(phrase)]) == phrase:
                for place in range(first, first + len(phrase)):
                    own[place] = max(own[place], boost)
    return sum(boost * weight(token) for boost, token in zip(own, tokens, strict=True))


def in_text(text, hotwords):
    """The oracle for letters: whole words, and a reward for each letter but none for spaces."""
    boosts = {f" {' '.join(hotword.words)} ": hotword.boost for hotword in hotwords}
    boosts = {tuple(phrase): boost for phrase, boost in boosts.items()}
    return reward(tuple(f" {text} "), boosts, lambda letter: float(letter != " "))


def hotwords(**boosts):
    """Return hotwords; `_` is a space."""
    return [Hotword(tuple(x.split("_")), boost, "names.txt:1") for x, boost in boosts.items()]


def all_found(search: Search, log_probs: torch.Tensor) -> list[TokenPath]:
    (best,) = search(log_probs, torch.tensor([log_probs.shape[1]]))
    return [best, *best.alternatives]


def test_the_automaton_agrees_with_the_oracle_on_random_sequences():
    """Phrases overlap, contain and continue one another, with other boosts and weights of tokens."""
    rng = random.Random(0)
    for _ in range(300):
        phrases = [tuple(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 6))]
        boosts = {phrase: rng.choice([0.0, 0.5, 1.0, 2.0, 4.0]) for phrase in phrases}
        weights = {letter: rng.choice([0.0, 1.0, 3.0]) for letter in "abcd"}
        graph = PhraseGraph(boosts, weights.__getitem__)
        match, total, tokens = graph.start, 0.0, []
        for token in rng.choices("abcd", weights=(4, 4, 4, 1), k=25):
            match, added = graph.extend(match, token)
            total += added
            tokens.append(token)
            assert total + graph.finish(match) == pytest.approx(reward(tokens, boosts, weights.__getitem__))
            assert match.open >= 0  # what is begun is never punished


def test_a_begun_phrase_is_rewarded_at_once_and_loses_it_when_abandoned():
    graph = PhraseGraph({tuple("anna"): 1.0})
    match, sums = graph.start, [0.0]
    for letter in "annoanna":
        match, added = graph.extend(match, letter)
        sums.append(sums[-1] + added)
    assert sums == [0, 1, 2, 3, 0, 1, 2, 3, 4]


LETTERS = [
    {"a": 1.5},
    {"an": 1.0, "n": 3.0},
    {"a_n": 2.0, "n_a": 1.0},
    {"an": 0.7, "an_a": 0.9, "na_n": 5.0},
]


@pytest.mark.parametrize("boosts", LETTERS)
def test_prefix_search_finds_the_letters_with_the_best_sum(boosts, tmp_path):
    """Compares all hypotheses with brute force over all label sequences and alignments."""
    tokenizer = CharacterTokenizer.train(["a n"])
    given = hotwords(**boosts)
    fusion = HotwordFusion(NoModel(), given, tokenizer)
    for seed in range(3):
        log_probs = random_log_probs(seed, 5, len(tokenizer))
        log_probs[..., 1] = -math.inf  # <unk>
        expected = {}
        for ids, score in brute_force(log_probs[0, :, [0, 2, 3, 4]]).items():
            labels = tuple(x + 1 for x in ids)
            expected[labels] = score + in_text(tokenizer.text(labels), given)
        found = all_found(PrefixSearch(fusion, nbest=len(expected), **EVERYTHING), log_probs)
        assert {tuple(path.ids): path.score for path in found} == pytest.approx(expected, abs=1e-4)
        assert tuple(found[0].ids) == max(expected, key=expected.get)


@pytest.mark.slow
def test_prefix_search_finds_phones_in_any_pronunciation():
    """A word that the lexicon has twice is rewarded in both; parts of words count, as phones have no gaps."""
    given = hotwords(anno=2.0, own=1.0)
    fusion = HotwordFusion(NoModel(), given, PHONES, LEXICON)
    boosts = {("AE", "N", "OW"): 2.0, ("AA", "N", "OW"): 2.0, ("OW", "N"): 1.0}
    for seed in range(2):
        log_probs = random_log_probs(seed, 4, len(PHONES))
        expected = brute_force(log_probs[0])
        for ids in expected:
            expected[ids] += reward(PHONES.tokens(ids), boosts)
        found = all_found(PrefixSearch(fusion, nbest=len(expected), **EVERYTHING), log_probs)
        assert {tuple(path.ids): path.score for path in found} == pytest.approx(expected, abs=1e-4)


def total(fusion, labels):
    context, score = fusion.start(), 0.0
    for label in labels:
        context, added = fusion.extend(context, label)
        score += added
    return score + fusion.finish(context)


def test_pieces_are_rewarded_in_any_segmentation_and_symbols_of_several_letters_too():
    pieces = SentencePieceTokenizer.train(["anna an no know"] * 20, 10)
    rng = random.Random(0)
    longer = VocabularyTokenizer(["<pad>", "|", "a", "n", "nn", "o"])
    for tokenizer in (pieces, longer):
        given = writable(hotwords(anna=1.0, no_an=2.0), tokenizer)
        fusion = HotwordFusion(NoModel(), given, tokenizer)
        rewarded = 0
        for _ in range(4000):
            labels = rng.choices(range(1, len(tokenizer)), k=6)
            if "<unk>" in tokenizer.tokens(labels):
                continue
            found = total(fusion, labels)
            assert found == in_text(tokenizer.text(labels), given)
            rewarded += found > 0
        assert rewarded > 5
    assert total(HotwordFusion(NoModel(), hotwords(anna=1.0), pieces), pieces.encode("an anna no")) == 4.0


def test_scripts_without_spaces_need_no_boundaries():
    tokenizer = CharacterTokenizer.train(["今天天气 ok"])
    fusion = HotwordFusion(NoModel(), hotwords(天气=1.0, ok=1.0), tokenizer)
    assert total(fusion, tokenizer.encode("今天天气")) == 2.0
    assert total(fusion, tokenizer.encode("今天ok")) == 0.0  # a part of a word, as far as spaces tell


@pytest.fixture
def arpa(tmp_path):
    pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")
    sentences = [["no", "an"], ["know", "no"], ["own", "an", "anno"], ["an"]]
    write_arpa(estimate(sentences, 2), tmp_path / "words.arpa")
    return tmp_path / "words.arpa"


WORDS = [{"know": 2.0}, {"no_own": 3.0, "own": 0.5}, {"an_own": 1.0, "own_an": 2.0}]


@pytest.mark.parametrize("boosts", WORDS)
@pytest.mark.parametrize("lm_weight", [0.0, 1.5, -1.0])
def test_beam_search_finds_the_words_with_the_best_sum(boosts, lm_weight, arpa):
    """Compares with all hypotheses of a search without hotwords, to whose scores the oracle adds its rewards.

    A word's reward is that of its phones. Of the homophones `no` and `know`, the rewarded one is found, not
    the lexicon's first one.
    """
    given = hotwords(**boosts)
    whole = {"beam": 10**5, "threshold": 1e6, "lm": arpa, "lm_weight": lm_weight or 1e-6}
    phrases = {hotword.words: hotword.boost for hotword in given}
    for seed in range(3):
        log_probs = random_log_probs(seed, 6, len(PHONES))
        expected = {}
        for path in all_found(BeamSearch(PHONES, nbest=100, **whole), log_probs):
            words = tuple(path.text.split())
            expected[words] = path.score + reward(words, phrases, lambda word: len(LEXICON.first(word)))
        search = BeamSearch(PHONES, nbest=5, hotwords=given, **whole | {"lm_weight": lm_weight})
        found = all_found(search, log_probs)
        best = sorted(expected.values(), reverse=True)[:5]
        assert [path.score for path in found] == pytest.approx(best, abs=1e-3)
        assert [expected[tuple(path.text.split())] for path in found] == pytest.approx(best, abs=1e-3)


def spoken(labels: str, tokenizer) -> torch.Tensor:
    """Return [1, T, V] log-probabilities with a peak at one label per frame; `_` is blank."""
    ids = [0 if label == "_" else tokenizer.symbols.index(label) for label in labels.split()]
    log_probs = torch.full((1, len(ids), len(tokenizer)), -6.0)
    log_probs[0, torch.arange(len(ids)), torch.tensor(ids)] = 0.0
    return log_probs.log_softmax(-1)


def text(decoder: str, tokenizer, labels: str, **options) -> str | None:
    search = DECODERS[decoder](**options).build(tokenizer)
    log_probs = spoken(labels, tokenizer)
    return text_of(search(log_probs, torch.tensor([log_probs.shape[1]]))[0], tokenizer)


@needs_flashlight
def test_words_that_the_lexicon_lacks_are_recognised(tmp_path):
    """Nona is neither in the lexicon nor in the language model; its phones are those of g2p."""
    if installed_model() is None:
        pytest.skip("g2p_en is not installed")
    tokenizer = PhoneTokenizer(LEXICON.merged(Lexicon({"uh": [("AH",)]})))
    path = tmp_path / "names.txt"
    path.write_text("Nona\n")
    said = " _ ".join(pronunciations(hotwords(nona=1.0), LEXICON, tokenizer, installed_model()).first("nona"))
    for decoder in ("beam", "prefix"):
        assert text(decoder, tokenizer, f"AE N _ {said}", hotwords=str(path)) == "an nona"
        assert "nona" not in text(decoder, tokenizer, f"AE N _ {said}")


@needs_flashlight
def test_words_are_spelled_where_the_model_has_letters(tmp_path):
    """The beam knows the words of its list and the hotwords, whose capitals the model lacks."""
    tokenizer = CharacterTokenizer.train(["an no know"])
    names, words = tmp_path / "names.txt", tmp_path / "words.txt"
    names.write_text("Anno\t3\n")
    words.write_text("an\nno\nknow\n")
    heard = "n o | a n _ n o"
    assert text("beam", tokenizer, heard, lexicon=str(words), hotwords=str(names)) == "no anno"
    assert text("beam", tokenizer, heard, lexicon=str(words)) != "no anno"
    unclear = spoken("a n _ n a", tokenizer)
    unclear[0, -1, tokenizer.symbols.index("o")] = -1.0
    for boost, expected in ((0.0, "anna"), (2.0, "anno")):
        names.write_text(f"anno :{boost}\n")
        search = Prefix(hotwords=str(names)).build(tokenizer)
        assert tokenizer.text(search(unclear, torch.tensor([5]))[0].ids) == expected


@needs_flashlight
def test_hotwords_have_the_case_of_the_words_beside_them(tmp_path, arpa):
    """To a model without case, `Anno` was a second word beside the language model's `anno`.

    It had the probability of an unknown word, which took most of the reward, and capitals in the result.
    """
    tokenizer = VocabularyTokenizer(["<pad>", "|", *"AKNOW"])
    names = tmp_path / "names.txt"
    unclear = spoken("A N _ N A", tokenizer)
    unclear[0, -1, tokenizer.symbols.index("O")] = -4.0
    lm = {"lm": str(arpa), "lm_weight": 1.0}
    scores = []
    for given in ("Anno\t0", "anno\t2", "Anno\t2"):
        names.write_text(given)
        search = Beam(hotwords=str(names), nbest=5, **lm).build(tokenizer)
        scores.append({path.text: path.score for path in all_found(search, unclear)})
    plain, lower, natural = scores
    assert natural == lower
    assert natural["anno"] == pytest.approx(plain["anno"] + 8.0)
    names.write_text("Nona\t9\n")  # in no list
    assert text("beam", tokenizer, "N O _ N A", hotwords=str(names), **lm) == "nona"


def test_prefix_search_has_hotwords_in_the_case_of_the_language_model(tmp_path, arpa):
    """A model that writes both cases was rewarded for words that the language model doesn't know."""
    tokenizer = CharacterTokenizer.train(["an anno An Anno"])
    (tmp_path / "names.txt").write_text("An\t2\n")
    search = Prefix(hotwords=str(tmp_path / "names.txt"), lm=str(arpa), lm_weight=1.0).build(tokenizer)
    unclear = spoken("A n", tokenizer)
    unclear[0, 0, tokenizer.symbols.index("a")] = -1.0
    (found,) = search(unclear, torch.tensor([2]))
    assert tokenizer.text(found.ids) == "an"


def test_the_case_of_words_is_not_that_of_tags():
    """A lexicon of lower-case words with <NOISE> seemed to have both cases."""
    given = hotwords(Anno=1.0)
    for tag in ("<NOISE>", "[NOISE]", "!SIL", "{LAUGHTER}"):
        lexicon = Lexicon({tag: [("NSN",)], "anno": [("AE", "N", "OW")]})
        assert in_words_of(given, lexicon) == hotwords(anno=1.0)
    assert in_words_of(given, Lexicon({"今天": [("T",)]})) == given
    assert in_words_of(given, Lexicon({"Anna": [("T",)]})) == given
    assert writable(given, CharacterTokenizer.train(["Anno"]), ["no", "an"]) == given  # there is no `a`


@needs_flashlight
@pytest.mark.parametrize("decoder", ["beam", "prefix"])
def test_boost_0_is_the_search_without_hotwords_bit_for_bit(decoder, tmp_path, arpa):
    path = tmp_path / "names.txt"
    path.write_text("no own\nnona\nan\t0\n")
    lm = {"lm": str(arpa), "lm_weight": 1.0} if decoder == "beam" else {}
    options = DECODERS[decoder](nbest=20, **lm)
    inert = DECODERS[decoder](nbest=20, hotwords=str(path), hotword_boost=0.0, **lm)
    for seed in range(3):
        log_probs = random_log_probs(seed, 12, len(PHONES))
        plain, biased = (all_found(x.build(PHONES), log_probs) for x in (options, inert))
        assert biased == plain
        assert [path.score for path in biased] == [path.score for path in plain]


@needs_flashlight
@pytest.mark.parametrize("decoder", ["beam", "prefix"])
def test_the_same_search_gives_the_same_result_with_other_weights_and_back(decoder, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("no own\nanno own\n")
    options = DECODERS[decoder](nbest=10, hotwords=str(path))
    log_probs = random_log_probs(3, 30, len(PHONES))
    search = options.build(PHONES)
    first = all_found(search, log_probs)
    for again in (search, options.build(PHONES)):
        assert all_found(again, log_probs) == first
    narrow = search.with_weights(Weights(2.0, -1.0, 3))
    assert all_found(narrow, log_probs)[0].score <= first[0].score
    assert all_found(narrow.with_weights(options.weights()), log_probs) == first


def test_a_language_model_of_words_counts_beside_the_hotwords(arpa):
    tokenizer = CharacterTokenizer.train(["an anno know no own"])
    given = hotwords(know_no=2.0)
    inner = build_fusion(str(arpa), tokenizer, 1.5, -0.7)
    fusion = HotwordFusion(inner, given, tokenizer)
    for sentence in ("know no", "no an", "know own"):
        labels = tokenizer.encode(sentence)
        assert total(fusion, labels) == pytest.approx(total(inner, labels) + in_text(sentence, given))
    other, labels = fusion.with_weights(0.5, 0.0), tokenizer.encode("know no")
    assert fusion.tunable == inner.tunable
    assert total(other, labels) == pytest.approx(total(inner.with_weights(0.5, 0.0), labels) + 12.0)


def test_files_have_a_phrase_per_line_and_some_have_boosts(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes(
        "\ufeffAnna Smith\r\n\n  Zoe\u0308\u200b\t3.5\nNew  York :2\nnever\t0\nat 5 :30 pm\n".encode()
    )
    assert [(x.words, x.boost) for x in read_hotwords(str(path), 1.0)] == [
        (("Anna", "Smith"), 1.0),
        (("Zoë",), 3.5),
        (("New", "York"), 2.0),
        (("never",), 0.0),
        (("at", "5", ":30", "pm"), 1.0),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "names.txt: expected a phrase per line, found none"),
        (b"\n \n", "names.txt: expected a phrase per line, found none"),
        (b"an\n\xff\xfe\n", "names.txt:2: expected utf-8 text, found the bytes ff"),
        (b"an\tnan\n", r"names.txt:1: expected a boost of 0 … 1000, found 'nan'"),
        (b"an\nno :-1\n", r"names.txt:2: expected a boost of 0 … 1000, found '-1'"),
        (b"an\tno\n", r"names.txt:1: expected a boost of 0 … 1000, found 'no'"),
        (b"an :1e9\n", r"names.txt:1: expected a boost of 0 … 1000, found '1e9'"),
        (b"\t2\n", r"names.txt:1: expected a phrase, found '2'|names.txt:1: '2': the characters"),
        (b"an " * 60, r"names.txt:1: expected a phrase of at most 100 letters, found 120"),
        ("an Zoé\n".encode(), r"names.txt:1: 'an Zoé': the characters of the model can't write Z é$"),
        (b"\xe2\x80\x8b\n", r"names.txt:1: expected a phrase, found"),
        (b"no\x07\n", r"names.txt:1: 'no\\x07': the characters of the model can't write \\x07$"),
        (b"[noise]\n", r"names.txt:1: '\[noise\]': the characters of the model can't write"),
    ],
)
def test_files_that_are_no_hotwords_are_one_line(content, message, tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes(content)
    tokenizer = CharacterTokenizer.train(["an no"])
    for decoder in ("prefix", "beam"):
        words = {"lexicon": str(tmp_path / "words.txt")} if decoder == "beam" else {}
        (tmp_path / "words.txt").write_text("an\nno\n")
        with pytest.raises(UserError, match=message) as error:
            DECODERS[decoder](hotwords=str(path), **words).build(tokenizer)
        assert "\n" not in str(error.value)


def test_words_without_pronunciation_are_named():
    german = PhoneTokenizer(Lexicon({"nein": [("n", "aI", "n")]}))
    with pytest.raises(UserError, match=r"names.txt:1: 'nein doch': 'doch' has no pronunciation"):
        pronunciations(hotwords(nein_doch=1.0), german.lexicon, german, lambda word: ("D",))
    with pytest.raises(UserError, match=r"'zoë' isn't in the lexicon, and g2p_en can't read ë"):
        pronunciations(hotwords(zoë=1.0), LEXICON, PHONES, lambda word: ("N",))
    with pytest.raises(UserError, match=r"names.txt:1: 'zo': expected phones of the model .*, found Z OW"):
        pronunciations(hotwords(zo=1.0), LEXICON, PHONES, lambda word: ("Z", "OW"))


def test_greedy_search_has_no_place_for_hotwords():
    with pytest.raises(UserError, match=r"beam.hotwords=x.txt: has no effect with decoder=greedy"):
        config.parse(SearchOptions, ["beam.hotwords=x.txt"])
    with pytest.raises(UserError, match=r"beam.hotword_boost=3: has no effect without beam.hotwords"):
        config.parse(SearchOptions, ["decoder=beam", "beam.hotword_boost=3"])
    for bad in ("nan", "-1", "inf"):
        with pytest.raises(UserError, match=r"beam.hotword_boost="):
            config.parse(SearchOptions, ["decoder=beam", "beam.hotwords=x", f"beam.hotword_boost={bad}"])


def test_word_rewards_are_scaled_by_letters():
    rewards = WordRewards(hotwords(an_no=2.0), ["an", "no", "know"], [2, 2, 4])
    assert [rewards.of(x) for x in ([0, 1], [0, 2], [0, 0, 1, 0], [])] == [8.0, 0.0, 8.0, 0.0]
    assert all(rewards.of(x) >= 0 for x in itertools.product(range(3), repeat=3))
