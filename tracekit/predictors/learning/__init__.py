"""What learned predictors are made of: regressions, counts, draws."""
