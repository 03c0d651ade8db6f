"""Wang & Blei's empirical study, run again: what robustness buys, where it buys nothing, with Monte-Carlo errors."""
