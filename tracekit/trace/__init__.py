"""What a trace is: schema, reader, writer, validation, provenance, synthetic traces."""
