from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from asr.errors import UserError
from asr.search.decoder import build_decoder
from asr.search.options import BeamConfig, Weights
from asr.search.pool import SearchPool
from asr.text.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer.train(["abc"])


def batch(seed, count=3, frames=9):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(count, frames, len(TOKENIZER), generator=generator).log_softmax(-1)
    return log_probs, torch.tensor([frames, frames // 2, 0])


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_equal_those_of_the_decoder_in_order(jobs):
    decoder = build_decoder("prefix", TOKENIZER, BeamConfig(nbest=2))
    expected, found = [], []
    with SearchPool("prefix", TOKENIZER, BeamConfig(nbest=2), jobs=jobs) as pool:
        for seed in range(4):
            log_probs, lengths = batch(seed)
            expected += decoder(log_probs, lengths)
            pool.put([f"{seed}-{i}" for i in range(3)], log_probs, lengths)
            found += pool.ready()
        found += pool.results()
        assert [result.key for result in found] == [f"{seed}-{i}" for seed in range(4) for i in range(3)]
        assert [result.path for result in found] == expected
        assert all(len(result.path.alternatives) == 1 for result in found[:2])
        assert all(result.cpu_s >= 0 for result in found)

        log_probs, lengths = batch(0)
        narrow = Weights(lm_weight=0.0, word_score=0.0, size=1)
        pool.reweight(narrow)
        pool.put(["a", "b", "c"], log_probs, lengths)
        paths = [result.path for result in pool.results()]
        assert paths == build_decoder("prefix", TOKENIZER, BeamConfig(size=1))(log_probs, lengths)


def test_a_decoder_that_cannot_be_built_raises_before_processes_start():
    with pytest.raises(UserError, match="needs words to search for"):
        SearchPool("beam", TOKENIZER, BeamConfig(), jobs=2)


def test_greedy_search_has_no_weights():
    pool = SearchPool("greedy", TOKENIZER, BeamConfig())
    with pytest.raises(UserError, match="only decoder=beam and decoder=prefix"):
        pool.reweight(Weights(1.0, 0.0, 5))


def test_a_killed_process_raises_a_user_error():
    future: Future = Future()
    future.set_exception(BrokenProcessPool("terminated abruptly"))
    pool = SearchPool("greedy", TOKENIZER, BeamConfig())
    pool._done.append(future)
    with pytest.raises(UserError, match="was killed, perhaps for lack of memory"):
        list(pool.results())
