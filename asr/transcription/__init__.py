"""The pipeline from recordings of any length to transcripts, hypotheses and alignments."""
