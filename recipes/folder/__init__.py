"""Your own data or a published corpus: a folder of audio files and their transcripts."""
