"""The router's shell: HTTP, feeds, registry, metrics around the pure core. Never imports torch or a tokenizer."""
