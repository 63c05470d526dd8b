"""Names that options accept, for modules that must not load PyTorch."""

BACKENDS = ("auto", "reference", "native")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
# A name of each attention mechanism, with its usual number; written by tools/mechanism_table.py.
MECHANISMS = (
    "full",
    "shared-full",
    "oracle-top-32",
    "lsh-4",
    "clustered-100",
    "i-clustered-100",
    "near-100",
    "local-64",
    "linear",
    "cast-8",
    "agglomerative-8",
    "summary",
    "hyper",
)
