"""One file for each program that is measured, our own included; `benchmarks.measure` says what a file must offer."""
