"""Wall Street Journal (WSJ0 and WSJ1): read newspaper sentences, 81 hours."""
