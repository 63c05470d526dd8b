"""The parts of LibriSpeech: OpenSLR resources, checksums, utterance counts, subsets and splits."""

from dataclasses import dataclass

from asr.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Archive:
    """An OpenSLR archive: resource number, checksum (MD5 or SHA-256) and number of utterances."""

    resource: int
    checksum: str
    utterances: int


# Checksums: torchaudio's for resource 12, those in md5sum.txt for resource 31.
PARTS = {
    "train-clean-5": Archive(31, "5df7d4e78065366204ca6845bb08f490", 1519),
    "dev-clean-2": Archive(31, "6d7ab67ac6a1d2c993d050e16d61080d", 1089),
    "train-clean-100": Archive(12, "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2", 28539),
    "train-clean-360": Archive(
        12, "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf", 104014
    ),
    "train-other-500": Archive(
        12, "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2", 148688
    ),
    "dev-clean": Archive(12, "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3", 2703),
    "dev-other": Archive(12, "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365", 2864),
    "test-clean": Archive(12, "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23", 2620),
    "test-other": Archive(12, "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29", 2939),
}
SUBSETS = {
    "mini": ["train-clean-5"],
    "clean-100": ["train-clean-100"],
    "clean-360": ["train-clean-360"],
    "clean-460": ["train-clean-100", "train-clean-360"],
    "other-500": ["train-other-500"],
    "960": ["train-clean-100", "train-clean-360", "train-other-500"],
}
# Splits of the evaluation parts.
SPLITS = {
    "dev-clean-2": "dev",
    "dev-clean": "dev",
    "dev-other": "dev_other",
    "test-clean": "test",
    "test-other": "test_other",
}


def parts_by_split(subset: str, evaluation: list[str]) -> dict[str, list[str]]:
    """Return the parts of each split.

    Args:
        subset: a key of `SUBSETS`.
        evaluation: development and test parts; empty: dev-clean-2 for `mini`, else the four official ones.

    Raises:
        UserError: a name is unknown, two parts share a split, or there is no development part.
    """
    if subset not in SUBSETS:
        raise UserError(f"subset={subset}: expected a training subset{did_you_mean(subset, list(SUBSETS))}")
    usual = ["dev-clean-2"] if subset == "mini" else [part for part in SPLITS if part != "dev-clean-2"]
    splits = {"train": SUBSETS[subset]}
    for part in evaluation or usual:
        if part not in SPLITS:
            raise UserError(
                f"evaluation={part}: expected a development or test part{did_you_mean(part, list(SPLITS))}"
            )
        if SPLITS[part] in splits:
            other = splits[SPLITS[part]][0]
            raise UserError(
                f"evaluation={evaluation}: expected one part of each split, found {other} and {part} for "
                f"{SPLITS[part]}"
            )
        splits[SPLITS[part]] = [part]
    if "dev" not in splits:
        raise UserError(f"evaluation={evaluation}: expected dev-clean or dev-clean-2, needed for training")
    return splits
