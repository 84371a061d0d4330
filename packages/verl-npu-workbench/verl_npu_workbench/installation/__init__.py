"""Installation of an environment for a pin: commands in order, files for pip, and images, all from the pin's table."""
