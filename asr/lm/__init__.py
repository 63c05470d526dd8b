"""N-gram language models: estimation, reading, perplexity."""
