"""The acoustic model: filter banks, encoder and CTC head, its checkpoints and exports."""
