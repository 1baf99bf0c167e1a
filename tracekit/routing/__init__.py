"""What did the model route, token by token? The views that predictors, scoring and analysis share."""
