"""Regressions whose rows fall into groups with effects of their own: robust mixed models."""
