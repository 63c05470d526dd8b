"""LibriSpeech and mini LibriSpeech: public read English."""
