from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from asr.errors import UserError
from asr.search.decoder import Weights
from asr.search.decoders.beam import Beam
from asr.search.decoders.greedy import Greedy
from asr.search.decoders.prefix import Prefix
from asr.search.pool import SearchPool
from asr.text.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer.train(["abc"])


def batch(seed, count=3, frames=9):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(count, frames, len(TOKENIZER), generator=generator).log_softmax(-1)
    return log_probs, torch.tensor([frames, frames // 2, 0])


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_equal_those_of_the_decoder_in_order(jobs):
    search = Prefix(nbest=2).build(TOKENIZER)
    expected, found = [], []
    with SearchPool(Prefix(nbest=2), TOKENIZER, jobs) as pool:
        for seed in range(4):
            log_probs, lengths = batch(seed)
            expected += search(log_probs, lengths)
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
        assert paths == Prefix(size=1).build(TOKENIZER)(log_probs, lengths)


def test_a_decoder_that_cannot_be_built_raises_before_processes_start():
    with pytest.raises(UserError, match="needs words to search for"):
        SearchPool(Beam(), TOKENIZER, jobs=2)


def test_a_killed_process_raises_a_user_error():
    future: Future = Future()
    future.set_exception(BrokenProcessPool("terminated abruptly"))
    pool = SearchPool(Greedy(), TOKENIZER)
    pool._done.append(future)
    with pytest.raises(UserError, match="was killed, perhaps for lack of memory"):
        list(pool.results())
