"""What a training of verl wrote about its steps: read from a console log, its file logger, or TensorBoard's files."""
