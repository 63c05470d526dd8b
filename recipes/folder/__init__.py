"""Your own data: a folder of audio files and their transcripts."""
