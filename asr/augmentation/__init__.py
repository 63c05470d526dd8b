"""Augmentation of training audio: other rooms, noises, channels and ways of speaking."""
