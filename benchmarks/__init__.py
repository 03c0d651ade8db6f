"""Ratios against other programs: see README.md in this folder."""
