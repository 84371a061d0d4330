"""ATB's operators, which a separate library registers."""
