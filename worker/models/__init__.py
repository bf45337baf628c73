"""Models on disk and in memory: the catalogue, GGUF conversion, the Llama family."""
