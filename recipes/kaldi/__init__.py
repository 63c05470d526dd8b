"""Data prepared for Kaldi: directories with wav.scp and text."""
