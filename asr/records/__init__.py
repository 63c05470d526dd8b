"""What work leaves on disk: results by key to resume from, shards to join, run folders."""
