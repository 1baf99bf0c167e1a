"""How sure is a figure? Confidence intervals from draws of correlated tokens."""
