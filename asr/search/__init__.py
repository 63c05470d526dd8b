"""From CTC posteriors to labels, times and words."""
