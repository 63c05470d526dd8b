"""The tables of the page and the terminal, one per module: functions from results to tables."""
