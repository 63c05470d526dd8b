"""Improved clustered attention: clustered attention made exact on each cluster's top keys."""
