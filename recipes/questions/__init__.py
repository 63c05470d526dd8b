"""Questions about texts, and GLUE: what exchanging the attention of a fine-tuned model costs."""
