"""The embedded corpus: synthetic speech, made on the spot."""
