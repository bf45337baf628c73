"""The worker's shell: HTTP, engine thread, models, tokenizer around the pure core."""
