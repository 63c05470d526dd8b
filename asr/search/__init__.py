"""From CTC posteriors to hypotheses."""
