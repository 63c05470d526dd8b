"""Recipe `switchboard`: conversational telephone speech, tested on eval2000."""
