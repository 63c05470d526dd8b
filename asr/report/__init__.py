"""Report of results: one self-contained HTML page, with every figure as PNG and PDF."""
