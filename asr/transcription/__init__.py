"""Recordings of any length to transcripts."""
