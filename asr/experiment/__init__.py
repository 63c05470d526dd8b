"""Compares attention mechanisms under one protocol: from candidates to error rates, costs and advice."""
