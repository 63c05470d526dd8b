"""The acoustic model: filter banks, encoder and head, its checkpoints and exports."""
