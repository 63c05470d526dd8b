import pytest

from asr.errors import UserError
from asr.files import read_record
from asr.search.decoder import Weights
from asr.search.decoders.beam import Beam
from asr.search.decoders.greedy import Greedy
from asr.search.decoders.prefix import Prefix
from asr.search.tune import Trial, record, tune, tuned

START = Weights(lm_weight=2.0, word_score=-1.0, size=300)
BOTH = ["word_score", "lm_weight"]


def valley(lm_weight, word_score, smallest=1):
    """Return an `evaluate` with errors that grow with the distance from an optimum and with a narrow beam."""

    def evaluate(weights):
        distance = abs(weights.lm_weight - lm_weight) + abs(weights.word_score - word_score)
        return Trial(weights, int(100 * distance) + 7 * (weights.size < smallest), 1000, 1.0)

    return evaluate


@pytest.mark.parametrize(("lm_weight", "word_score"), [(2.0, -1.0), (0.25, 1.5), (5.75, -3.25)])
def test_the_optimum_is_found(lm_weight, word_score):
    best, trials = tune(valley(lm_weight, word_score), START, BOTH)
    assert best.weights == Weights(lm_weight, word_score, 30)
    assert best.errors == min(trial.errors for trial in trials)
    assert trials[0].weights == START
    assert len({trial.weights for trial in trials}) == len(trials) < 60


def test_without_a_language_model_its_weight_is_not_tuned():
    best, trials = tune(valley(9.0, 0.5), START, ["word_score"])
    assert {trial.weights.lm_weight for trial in trials} == {2.0}
    assert best.weights.word_score == 0.5


def test_with_nothing_else_to_tune_only_smaller_beams_are_tried():
    """The prefix search without a language model was run with six word scores, which it ignores."""
    _, trials = tune(valley(2.0, -1.0), START, [])
    assert [trial.weights.size for trial in trials] == [300, 100, 30]


def test_a_smaller_beam_without_more_errors_is_kept():
    assert tune(valley(2.0, -1.0, smallest=50), START, BOTH)[0].weights.size == 100
    assert tune(valley(2.0, -1.0, smallest=200), START, BOTH)[0].weights.size == 300


def test_the_weight_is_never_negative():
    _, trials = tune(valley(-3.0, -1.0), START, BOTH)
    assert min(trial.weights.lm_weight for trial in trials) == 0


def test_recorded_weights_fill_in_unset_options(tmp_path):
    (tmp_path / "a.arpa").write_text("one")
    (tmp_path / "b.arpa").write_text("two")
    with_lm = Beam(lm=str(tmp_path / "a.arpa"))
    best = Trial(Weights(3.5, 0.5, 100), 3, 100, 1.0)
    path = record(tmp_path, with_lm, best, [best], {"split": "dev"})
    found = read_record(path)
    assert [entry["trials"][0]["wer"] for entry in found.values()] == [0.03]

    options, source = tuned(tmp_path, with_lm)
    assert (options.lm_weight, options.word_score, options.size) == (3.5, 0.5, 100)
    assert str(path) in source
    # The model is identified by its content, not by its name.
    (tmp_path / "copy.arpa").write_text("one")
    assert tuned(tmp_path, Beam(lm=str(tmp_path / "copy.arpa")))[0].lm_weight == 3.5
    # Explicit options take precedence.
    options, _ = tuned(tmp_path, Beam(lm=with_lm.lm, lm_weight=1.0))
    assert (options.lm_weight, options.word_score) == (1.0, 0.5)
    for decoder in (Beam(), Beam(lm=str(tmp_path / "b.arpa")), Prefix(lm=with_lm.lm), Greedy()):
        assert tuned(tmp_path, decoder) == (decoder, None)

    record(tmp_path, Beam(), best, [best], {})
    assert tuned(tmp_path, with_lm)[0].size == 100
    with pytest.raises(UserError, match=r"none.arpa: expected an ARPA or KenLM file, found none"):
        tuned(tmp_path, Beam(lm=str(tmp_path / "none.arpa")))
    path.write_text(path.read_text().replace("3.5", "4.5", 1))
    with pytest.raises(UserError, match=r"tuned.json: damaged: expected weights recorded by tune="):
        tuned(tmp_path, with_lm)
