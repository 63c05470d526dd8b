import pytest
import torch

from asr import config
from asr.errors import UserError
from asr.search.decoder import build_decoder
from asr.search.options import BeamConfig, SearchOptions
from asr.search.path import TokenPath, Word, words_of
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer, SentencePieceTokenizer

LEXICON = Lexicon({"GO": [("G", "OW")], "ON": [("AA", "N")]})


def spelled(tokenizer, text):
    """Return [1, T, V] log-probabilities of a text, with a blank after each label."""
    ids = tokenizer.encode(text)
    log_probs = torch.full((1, 2 * len(ids), len(tokenizer)), -9.0)
    log_probs[
        0, torch.arange(2 * len(ids)), torch.tensor([label for index in ids for label in (index, 0)])
    ] = 0.0
    return log_probs


@pytest.mark.parametrize("decoder", ["greedy", "beam", "prefix"])
def test_every_decoder_gives_words_for_phones(decoder):
    if decoder == "beam":
        pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")
    tokenizer = PhoneTokenizer(LEXICON)
    search = build_decoder(decoder, tokenizer, BeamConfig())
    (path,) = search(spelled(tokenizer, "GO ON"), torch.tensor([8]))
    assert path.text == "GO ON"
    assert path.ids == tokenizer.encode("GO ON")
    assert path.frames == [0, 2, 4, 6]
    assert path.ends == [1, 3, 5, 7]
    assert [(word.start, word.end) for word in path.words] == [(0, 2), (2, 4)]


@pytest.mark.parametrize("decoder", ["greedy", "prefix"])
def test_the_tokenizer_turns_characters_into_text(decoder):
    tokenizer = CharacterTokenizer.train(["go on"])
    (path,) = build_decoder(decoder, tokenizer, BeamConfig())(spelled(tokenizer, "go"), torch.tensor([4]))
    assert path.words is None
    assert path.text is None
    assert tokenizer.text(path.ids) == "go"


@pytest.mark.parametrize("text", ["go on", "go", "", "on go on"])
def test_words_of_labels(text):
    characters = CharacterTokenizer.train(["go on"])
    pieces = SentencePieceTokenizer.train(["go on", "on go", "no", "no go"] * 20, 8)
    for tokenizer in (characters, pieces):
        ids = tokenizer.encode(text)
        words = words_of(TokenPath(ids, [], []), tokenizer)
        assert [word.word for word in words] == text.split()
        assert [tokenizer.text(ids[word.start : word.end]) for word in words] == text.split()
    gaps = characters.encode("go on")
    gaps = [2, *gaps[:3], 2, *gaps[3:], 2]
    assert words_of(TokenPath(gaps, [], []), characters) == [Word("go", 1, 3), Word("on", 5, 7)]


def test_errors_name_options_that_do_not_apply():
    phones = PhoneTokenizer(LEXICON)
    with pytest.raises(UserError, match=r"decoder=beem.*'beam'"):
        build_decoder("beem", phones, BeamConfig())
    with pytest.raises(UserError, match=r"decoder=greedy takes no language model, found beam.lm=a.arpa"):
        build_decoder("greedy", phones, BeamConfig(lm="a.arpa"))
    with pytest.raises(UserError, match=r"beam.size=0: expected a number"):
        build_decoder("prefix", phones, BeamConfig(size=0))


@pytest.mark.parametrize(
    ("decoder", "unused", "why"),
    [
        ("greedy", "nbest=2", "with decoder=greedy"),
        ("greedy", "size=5", "with decoder=greedy"),
        ("greedy", "lm=x.arpa", r"with decoder=greedy, only with decoder=beam \| prefix"),
        ("beam", "token_threshold=3", "with decoder=beam, only with decoder=prefix"),
        ("beam", "lm_weight=3", "without beam.lm"),
        ("prefix", "lexicon=words.txt", "with decoder=prefix"),
        ("prefix", "word_score=1", "with decoder=prefix without beam.lm"),
    ],
)
def test_options_that_a_decoder_ignores_are_refused(decoder, unused, why):
    with pytest.raises(UserError, match=f"beam.{unused}: has no effect {why}"):
        config.parse(SearchOptions, [f"decoder={decoder}", f"beam.{unused}"])
    for name in ("greedy", "beam", "prefix"):  # what a decoder completes is stored
        stored = {"decoder": name, "beam": config.to_dict(BeamConfig().complete(name))}
        assert config.from_dict(SearchOptions, stored, "cell.json").decoder == name
    fused = ["beam.lm=x.arpa", "beam.lm_weight=3", "beam.word_score=1"]
    config.parse(SearchOptions, [f"decoder={decoder if decoder == 'beam' else 'prefix'}", *fused])
