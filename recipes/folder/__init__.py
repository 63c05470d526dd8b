"""Your own data: a folder of audio and its transcripts."""
