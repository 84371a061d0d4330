"""Installation of an environment for a pin. Everything comes from the pin's table: the commands in order, the files
for pip, and the images."""
