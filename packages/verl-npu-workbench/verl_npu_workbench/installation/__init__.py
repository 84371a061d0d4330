"""How an environment for one pin is installed: commands in order, files for pip, images. All from the matrix."""
