"""How predictors are run over a trace and scored, the same for all of them."""
