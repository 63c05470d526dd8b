"""The masked-copy task of *Fast Transformers with Clustered Attention*, section C.2."""
