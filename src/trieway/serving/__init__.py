"""What router and worker share around HTTP: bodies, errors, templates, keys, settings, logs. No torch, no tokenizer."""
