"""The HTTP API: one file per noun, a small router, one place where refusals become answers."""
