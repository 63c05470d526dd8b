"""Names that options accept, for modules that must not load PyTorch."""

BACKENDS = ("auto", "reference", "native")
