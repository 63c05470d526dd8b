"""Imported by the fork server: composes configurations, so that its processes find them composed.

Composing options takes longer than a training of two steps. Backward passes can't be done in advance:
autograd refuses to run in a process forked after them.
"""

import gc

from tone_corpora import TINY

from asr.experiment.request import parse
from asr.training.config import train_options

train_options([*TINY, "data.train=[none]"])
parse([*TINY, "data.train=[none]", "attentions=[full]", "folder=none"])
gc.collect()
gc.freeze()  # a collection in a forked process would copy every page of what was imported
