"""LibriSpeech and mini LibriSpeech: read English that anyone may have."""
