"""Training: options to data, model and trainer, and the files of a run folder."""
