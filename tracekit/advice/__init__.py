"""What should be built for this model on this device? Findings, each with its evidence."""
