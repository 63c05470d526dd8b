"""Fine-tuned transformers models whose attention is exchanged, without retraining."""
