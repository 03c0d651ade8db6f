"""What is shown of a fit? Findings in sentences, plots and pages."""
