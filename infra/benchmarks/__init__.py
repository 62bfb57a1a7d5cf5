"""Measures of this checkout with real processes; `infra/bench` runs them."""
