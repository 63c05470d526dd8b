from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torchaudio.models.decoder

from asr import config
from asr.errors import UserError
from asr.search.cuda_beam import CudaSearch
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
        ("cuda", "tokens=3", "with decoder=cuda"),
    ],
)
def test_options_that_a_decoder_ignores_are_refused(decoder, unused, why):
    with pytest.raises(UserError, match=f"beam.{unused}: has no effect {why}"):
        config.parse(SearchOptions, [f"decoder={decoder}", f"beam.{unused}"])
    for name in ("greedy", "beam", "prefix", "cuda"):  # what a decoder completes is stored
        stored = {"decoder": name, "beam": config.to_dict(BeamConfig().complete(name))}
        assert config.from_dict(SearchOptions, stored, "cell.json").decoder == name
    fused = ["beam.lm=x.arpa", "beam.lm_weight=3", "beam.word_score=1"]
    config.parse(SearchOptions, [f"decoder={decoder if decoder == 'beam' else 'prefix'}", *fused])


def test_the_gpu_search_without_a_gpu_raises(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"decoder=cuda needs a CUDA device, found none; decoder=prefix"):
        build_decoder("cuda", PhoneTokenizer(LEXICON), BeamConfig())


@pytest.fixture
def labels_of_gpu(monkeypatch):
    """Replace torchaudio's CUDA decoder by one with fixed results, and return its options and devices."""
    asked = {"devices": []}
    current = [torch.device("cuda:0")]

    @contextmanager
    def entered(device):
        current.append(device)
        yield
        current.pop()

    def build(tokens, **options):
        asked.update(options, tokens=tokens)
        asked["devices"].append(current[-1])
        hypotheses = [SimpleNamespace(tokens=[3, 4], score=-0.5), SimpleNamespace(tokens=[3], score=-2.0)]

        def decode(log_probs, lengths):
            asked["devices"].append(current[-1])
            return [hypotheses[: options["nbest"]]]

        return decode

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torchaudio.models.decoder, "cuda_ctc_decoder", build, raising=False)
    return asked


def test_the_gpu_search_rejects_cpu_tensors(labels_of_gpu):
    tokenizer = PhoneTokenizer(LEXICON)
    search = CudaSearch(tokenizer, beam=100, nbest=2)
    with pytest.raises(UserError, match=r"needs the model on a CUDA device, found cpu: device=cuda"):
        search(spelled(tokenizer, "GO"), torch.tensor([4]))


def test_the_gpu_search_runs_on_the_device_of_the_log_probabilities(labels_of_gpu):
    """The kernels of torchaudio ran on the first GPU for a model on the second."""
    tokenizer = PhoneTokenizer(LEXICON)
    second, values = torch.device("cuda:1"), spelled(tokenizer, "GO")
    on_gpu, lengths = (
        Mock(device=second, **{"cpu.return_value": values}),
        Mock(**{"tolist.return_value": [4]}),
    )
    for same in ("detach", "float", "contiguous"):
        getattr(on_gpu, same).return_value = on_gpu
    (path,) = CudaSearch(tokenizer, beam=100, nbest=2)(on_gpu, lengths)
    assert labels_of_gpu["devices"] == [second, second]  # when built, and when called
    assert lengths.to.call_args.args[0] == second
    assert labels_of_gpu["beam_size"] == len(tokenizer)
    assert labels_of_gpu["blank_skip_threshold"] == 1.0
    assert [found.ids for found in (path, *path.alternatives)] == [[3, 4], [3]]


@pytest.mark.gpu
def test_the_gpu_search_equals_the_prefix_search():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    tokenizer = PhoneTokenizer(LEXICON)
    generator = torch.Generator().manual_seed(0)
    log_probs = (3 * torch.randn(4, 30, len(tokenizer), generator=generator)).log_softmax(-1)
    lengths = torch.tensor([30, 17, 5, 1])
    options = BeamConfig(size=len(tokenizer), nbest=2)
    found = build_decoder("cuda", tokenizer, options)(log_probs.cuda(), lengths.cuda())
    expected = build_decoder("prefix", tokenizer, options)(log_probs, lengths)
    assert [path.text for path in found] == [path.text for path in expected]
    assert [path.frames for path in found] == [path.frames for path in expected]
