"""Data prepared for NeMo: manifests with a JSON object per line."""
