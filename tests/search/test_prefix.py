import itertools
import math

import pytest
import torch

from asr.errors import UserError
from asr.lm.arpa import read_vocabulary, write_arpa
from asr.lm.kneser_ney import estimate
from asr.lm.ngram import NgramModel
from asr.search.decoder import Weights
from asr.search.decoders.beam import Beam
from asr.search.decoders.greedy import Greedy
from asr.search.decoders.prefix import Prefix
from asr.search.fusion import NoModel, TokenModel, WordModel, build_fusion
from asr.search.prefix import PrefixNode, PrefixSearch
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer, SentencePieceTokenizer, VocabularyTokenizer

EVERYTHING = {"beam": 10**6, "token_threshold": math.inf}
GAME = ["go on", "on go", "no", "no go"]


def random_log_probs(seed, frames, size):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(1, frames, size, generator=generator)).log_softmax(-1)


def collapse(labels):
    return tuple(label for label, _ in itertools.groupby(labels) if label)


def brute_force(log_probs_TV):
    """Return the log-probability of every label sequence, summed over all alignments."""
    frames, size = log_probs_TV.shape
    found = {}
    for labels in itertools.product(range(size), repeat=frames):
        probability = math.exp(sum(float(log_probs_TV[t, label]) for t, label in enumerate(labels)))
        found[collapse(labels)] = found.get(collapse(labels), 0.0) + probability
    return {ids: math.log(probability) for ids, probability in found.items()}


@pytest.mark.parametrize("seed", range(6))
def test_scores_are_sums_over_all_alignments(seed):
    log_probs = random_log_probs(seed, 5, 4)
    expected = sorted(brute_force(log_probs[0]).items(), key=lambda item: -item[1])
    search = PrefixSearch(NoModel(), nbest=len(expected), **EVERYTHING)
    (best,) = search(log_probs, torch.tensor([5]))
    found = [best, *best.alternatives]
    assert [tuple(path.ids) for path in found] == [ids for ids, _ in expected]
    assert [path.score for path in found] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("label_score", [-0.8, 0.8])
def test_every_label_adds_its_score(label_score):
    log_probs = random_log_probs(1, 5, 4)
    expected = {ids: score + label_score * len(ids) for ids, score in brute_force(log_probs[0]).items()}
    search = PrefixSearch(NoModel(), label_score=label_score, nbest=len(expected), **EVERYTHING)
    (best,) = search(log_probs, torch.tensor([5]))
    found = {tuple(path.ids): path.score for path in [best, *best.alternatives]}
    assert found == pytest.approx(expected, abs=1e-4)
    assert tuple(best.ids) == max(expected, key=expected.get)


def test_a_narrow_beam_never_overestimates_a_score():
    for seed in range(3):
        log_probs = random_log_probs(seed, 5, 4)
        expected = brute_force(log_probs[0])
        for beam in (1, 2, 4):
            (path,) = PrefixSearch(NoModel(), beam=beam)(log_probs, torch.tensor([5]))
            assert path.score <= expected[tuple(path.ids)] + 1e-4


def test_padding_is_not_read():
    log_probs = random_log_probs(0, 8, 4).repeat(2, 1, 1)
    log_probs[0, 5:] = torch.nan
    search = PrefixSearch(NoModel(), **EVERYTHING)
    alone = search(log_probs[:1, :5], torch.tensor([5]))[0]
    together = search(log_probs, torch.tensor([5, 8]))
    assert together[0] == alone
    assert together[1] == search(log_probs[1:], torch.tensor([8]))[0]
    assert search(log_probs, torch.tensor([0, 0]))[0].ids == []


def test_frames_come_from_the_viterbi_alignment():
    labels = torch.tensor([0, 2, 2, 0, 2, 1, 0])
    log_probs = torch.full((1, 7, 3), math.log(0.05))
    log_probs[0, torch.arange(7), labels] = math.log(0.9)
    (path,) = PrefixSearch(NoModel())(log_probs, torch.tensor([7]))
    assert (path.ids, path.frames, path.ends) == ([2, 2, 1], [1, 4, 5], [3, 5, 6])


def test_pruned_prefixes_are_freed():
    """The prefix tree of an hour-long recording would not fit into memory if pruned prefixes stayed in it."""
    search = PrefixSearch(NoModel(), beam=4)
    root = PrefixNode(None, 0, NoModel().start(), 0.0, log_blank=0.0)
    beam = [root]
    for log_probs_V in random_log_probs(1, 300, 6)[0].numpy():
        beam = search.step(beam, log_probs_V, log_probs_V)
    tree, waiting = 0, [root]
    while waiting:
        waiting += waiting.pop().children.values()
        tree += 1
    assert 100 < tree <= 4 * max(len(prefix.labels()) for prefix in beam) + 1


@pytest.fixture
def lms(tmp_path):
    """Write n-gram models of the words and of the characters of a few sentences."""
    pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")
    tokenizer = CharacterTokenizer.train(GAME)
    write_arpa(estimate([text.split() for text in GAME], 2), tmp_path / "words.arpa")
    write_arpa(
        estimate([tokenizer.tokens(tokenizer.encode(text)) for text in GAME], 2, tokenizer.symbols[1:]),
        tmp_path / "characters.arpa",
    )
    return tmp_path


def log10_of(path):
    """Return a function from a sentence to its log10 probability."""
    names = sorted(read_vocabulary(path))
    model = NgramModel(path, names)

    def score(words):
        state, total = model.start(), 0.0
        for word in words:
            state, log10 = model.score(state, names.index(word if word in names else "<unk>"))
            total += log10
        return total + model.finish(state)

    return score


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_scores_include_the_language_model_of_labels_or_words(kind, lms):
    """Compares with brute force over all label sequences and alignments, scoring whole sentences."""
    tokenizer = CharacterTokenizer.train(GAME)
    fusion = build_fusion(str(lms / f"{kind}.arpa"), tokenizer, 1.5, -0.7)
    assert isinstance(fusion, WordModel if kind == "words" else TokenModel)
    for seed in range(3):
        log_probs = random_log_probs(seed, 4, len(tokenizer))
        log_probs[..., 1] = -30.0  # <unk>
        (found,) = PrefixSearch(fusion, **EVERYTHING)(log_probs, torch.tensor([4]))
        log10, scores = log10_of(lms / f"{kind}.arpa"), {}
        for ids, score in brute_force(log_probs[0]).items():
            words = tokenizer.tokens(ids) if kind == "characters" else tokenizer.text(ids).split()
            scores[ids] = score + 1.5 * log10(words)
            scores[ids] -= 0.7 * len(words) * (kind == "words")
        best = max(scores, key=scores.get)
        assert tuple(found.ids) == best
        assert found.score == pytest.approx(scores[best], abs=1e-3)


def test_the_language_model_decides_between_similar_hypotheses(lms):
    """`ng` is slightly more probable than `no`, but only `no` is a word."""
    tokenizer = CharacterTokenizer.train(GAME)
    log_probs = torch.full((1, 2, len(tokenizer)), -9.0)
    index = tokenizer.symbols.index
    log_probs[0, 0, index("n")] = -0.1
    log_probs[0, 1, index("o")], log_probs[0, 1, index("g")] = -0.8, -0.7
    without = PrefixSearch(NoModel())(log_probs, torch.tensor([2]))[0]
    with_lm = PrefixSearch(build_fusion(str(lms / "words.arpa"), tokenizer, 1.0, 0.0))
    assert tokenizer.text(without.ids) == "ng"
    assert tokenizer.text(with_lm(log_probs, torch.tensor([2]))[0].ids) == "no"
    weightless = with_lm.with_weights(Weights(0.0, 0.0, 50))
    assert tokenizer.text(weightless(log_probs, torch.tensor([2]))[0].ids) == "ng"


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_a_language_model_of_weight_0_changes_nothing(kind, lms):
    """The default score of a word stayed, so that words were joined."""
    tokenizer = CharacterTokenizer.train(GAME)
    weightless = Prefix(lm=str(lms / f"{kind}.arpa"), lm_weight=0.0, nbest=3).build(tokenizer)
    without = Prefix(nbest=3).build(tokenizer)
    for seed in range(5):
        log_probs = random_log_probs(seed, 6, len(tokenizer))
        found, expected = (search(log_probs, torch.tensor([6]))[0] for search in (weightless, without))
        assert found == expected
        assert (found.score, found.alternatives) == (pytest.approx(expected.score), expected.alternatives)
    with pytest.raises(UserError, match=r"has no effect .* with beam\.lm_weight=0"):
        Prefix(lm="x", lm_weight=0.0, word_score=2.0).check()


def check_words(lms, tokenizer):
    fusion = build_fusion(str(lms / "words.arpa"), tokenizer, 1.0, 0.0)
    assert isinstance(fusion, WordModel)
    context, score = fusion.start(), 0.0
    for label in tokenizer.encode("no go on"):
        context, added = fusion.extend(context, label)
        score += added
    assert score + fusion.finish(context) == pytest.approx(log10_of(lms / "words.arpa")(["no", "go", "on"]))


def test_pieces_are_scored_as_words(lms):
    check_words(lms, SentencePieceTokenizer.train(GAME * 20, 8))


def test_words_are_those_of_the_texts_not_of_the_symbols(lms):
    """A published model with capitals as symbols and texts in lower case refused the model of its texts."""
    tokenizer = VocabularyTokenizer(["<pad>", "|", *"GNO"], lower=True)
    check_words(lms, tokenizer)
    write_arpa(estimate([text.upper().split() for text in GAME], 2), lms / "capitals.arpa")
    with pytest.raises(UserError, match=r"capitals.arpa: .*differ in case from those of the model's texts"):
        build_fusion(str(lms / "capitals.arpa"), tokenizer, 1.0, 0.0)


def test_a_word_score_is_tuned_and_accepted_only_where_it_has_an_effect(lms):
    tokenizer = CharacterTokenizer.train(GAME)
    words, characters = str(lms / "words.arpa"), str(lms / "characters.arpa")
    for decoder, names in [
        (Prefix(lm=words), {"word_score", "lm_weight"}),
        (Prefix(lm=characters), {"lm_weight"}),
        (Prefix(), set()),
        (Beam(lm=words), {"word_score", "lm_weight"}),
        (Greedy(), set()),
    ]:
        assert set(decoder.build(tokenizer).tunable) == names
    Prefix(lm=characters, word_score=-1.0).build(tokenizer)  # as stored by tuning
    with pytest.raises(UserError, match=r"beam.word_score=2: has no effect with .*characters.arpa"):
        Prefix(lm=characters, word_score=2.0).build(tokenizer)


def test_unsuitable_language_models_raise(lms):
    phones = PhoneTokenizer(Lexicon({"go": [("G", "OW")]}))
    with pytest.raises(UserError, match=r"words.arpa: decoder=prefix with phones expects a phone model"):
        build_fusion(str(lms / "words.arpa"), phones, 1.0, 0.0)
    capitals = CharacterTokenizer.train([text.upper() for text in GAME])
    with pytest.raises(UserError, match=r"words.arpa: .*differ in case from those of the model's texts"):
        build_fusion(str(lms / "words.arpa"), capitals, 1.0, 0.0)
    with pytest.raises(UserError, match=r"none.arpa: expected an ARPA or KenLM file, found none"):
        build_fusion(str(lms / "none.arpa"), capitals, 1.0, 0.0)


@pytest.mark.parametrize("options", [{"beam": 0}, {"beam": -2}, {"nbest": 0}, {"tokens": -1}])
def test_options_without_a_meaning_are_refused(options):
    """A beam of −2 kept all prefixes but two, so that the search never ended."""
    with pytest.raises(UserError, match=r"PrefixSearch: .* expected at least 1"):
        PrefixSearch(NoModel(), **options)
