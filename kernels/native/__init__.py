"""The compiled part. `_native` is absent in a pure build (`TRIEWAY_PURE=1`); the Python twins then serve."""
