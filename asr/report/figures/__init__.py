"""The figures of the page, one per module: functions from results to figures."""
