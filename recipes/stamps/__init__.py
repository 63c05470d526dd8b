"""Recorded descriptions of Tux Paint's stamps: volunteers in nine languages."""
