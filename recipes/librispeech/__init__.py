"""LibriSpeech and mini LibriSpeech: English books read aloud, free to download."""
