"""Training: options to data, model and trainer, and what a run leaves in its folder."""
