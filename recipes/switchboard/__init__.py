"""Switchboard-1: conversational telephone speech, tested on eval2000."""
