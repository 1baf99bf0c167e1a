"""What are predictors made of? Ridge regressions, token counts, repeated selections, random numbers."""
