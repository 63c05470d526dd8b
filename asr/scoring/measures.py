"""Measures of a system: name in words, unit, and which of two values is better."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A measure as tables, figures and findings show it; a new one is an entry of `MEASURES`.

    Attributes:
        words: name, as shown.
        unit: `%` for fractions, which are shown in percent, `nats` or empty.
        higher: whether a higher value is better.
    """

    words: str
    unit: str = ""
    higher: bool = False


MEASURES = {
    "per": Measure("PER", "%"),
    "wer": Measure("WER", "%"),
    "cer": Measure("CER", "%"),
    "ter": Measure("TER", "%"),
    "official": Measure("official WER", "%"),  # and of a subset: official-swbd
    "error": Measure("error rate", "%"),
    "changed": Measure("changed", "%"),  # labels that differ from those with full attention
    "top-1": Measure("top-1", "%", higher=True),  # tokens of the transcript that the model ranks first
    "nll": Measure("NLL", "nats"),
    "kl": Measure("KL", "nats"),
    "encoder": Measure("encoder"),  # relative distance of encoder states from those with full attention
    "f1": Measure("F1", higher=True),
    "em": Measure("EM", higher=True),  # exact match
    "accuracy": Measure("accuracy", higher=True),
    "matthews": Measure("Matthews", higher=True),
    "pearson": Measure("Pearson", higher=True),
    "spearman": Measure("Spearman", higher=True),
}


def measure_of(name: str) -> Measure:
    """Return a measure by its name in results, including those of recipes, `<unit>_per_<item>`.

    Example:
        >>> measure_of("dev_per"), measure_of("official-swbd").words
        (Measure(words='PER', unit='%', higher=False), 'official WER, swbd')
        >>> measure_of("dev_bits_per_character")
        Measure(words='bits per character', unit='', higher=False)
    """
    name = name.removeprefix("dev_")
    if name in MEASURES:
        return MEASURES[name]
    stem, _, subset = name.partition("-")
    if subset and stem in MEASURES:
        return Measure(f"{MEASURES[stem].words}, {subset}", MEASURES[stem].unit, MEASURES[stem].higher)
    return Measure(name.replace("_", " "))


def is_share(name: str) -> bool:
    """Return whether a measure is a fraction, shown in percent.

    Example:
        >>> is_share("dev_per"), is_share("dev_error"), is_share("dev_bits_per_character")
        (True, True, False)
    """
    return measure_of(name).unit == "%"
