"""Files of work on disk: journals to resume from, shards to join, run folders."""
