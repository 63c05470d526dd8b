"""Manifests, audio files, batches and the data module of a training run."""
