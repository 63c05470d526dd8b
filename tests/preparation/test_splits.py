"""Names of splits."""

import pytest

from asr.preparation.splits import usual_split_name


@pytest.mark.parametrize(
    ("written", "name"),
    [("Train", "train"), ("DEV", "dev"), ("validation", "dev"), (" Eval", "test"), ("eval92", "eval92")],
)
def test_usual_names_of_splits_are_found_in_any_case(written: str, name: str) -> None:
    """A folder `Train` was accepted, but training found no split `train`."""
    assert usual_split_name(written) == name
