import pytest
import torch

from asr.errors import UserError
from asr.search.decoder import DECODERS, BeamConfig, build_decoder
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer

LEXICON = Lexicon({"GO": [("G", "OW")], "ON": [("AA", "N")]})


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_gives_words_for_phones(decoder):
    if decoder == "beam":
        pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")
    tokenizer = PhoneTokenizer(LEXICON)
    ids = tokenizer.encode("GO ON")
    log_probs = torch.full((1, 8, len(tokenizer)), -9.0)
    log_probs[0, torch.arange(8), torch.tensor([label for index in ids for label in (index, 0)])] = 0.0
    (path,) = build_decoder(decoder, tokenizer, BeamConfig())(log_probs, torch.tensor([8]))
    assert path.text == "GO ON"
    assert path.ids == ids
    assert path.frames == [0, 2, 4, 6]
    assert [(word.start, word.end) for word in path.words] == [(0, 2), (2, 4)]


def test_characters_are_left_to_the_tokenizer():
    tokenizer = CharacterTokenizer.train(["go on"])
    log_probs = torch.nn.functional.one_hot(torch.tensor([tokenizer.encode("go")]), len(tokenizer)).float()
    (path,) = build_decoder("greedy", tokenizer, BeamConfig())(log_probs, torch.tensor([2]))
    assert path.words is None
    assert path.text is None
    assert tokenizer.text(path.ids) == "go"


def test_an_unknown_decoder_is_named():
    with pytest.raises(UserError, match=r"decoder=beem.*'beam'"):
        build_decoder("beem", PhoneTokenizer(LEXICON), BeamConfig())
