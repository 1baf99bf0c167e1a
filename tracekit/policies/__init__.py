"""Cache policies: one file a policy, found through a registry."""
