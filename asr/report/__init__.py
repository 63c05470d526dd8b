"""Results of a comparison as one self-contained HTML page, with a static PNG and PDF of each figure."""
