"""What did the model route, token by token, and by which rule? Views that several packages share.

Blocks of decoded tokens, the decode routings as one grid, the routers and their selection rule, how
long each turn decoded, and the residency that the engine recorded: predictors, scoring, analysis and
the report all look at a trace through these.
"""
