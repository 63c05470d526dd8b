"""The figures of the page, one per file: results → figures."""
