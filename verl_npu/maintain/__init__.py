"""What those need who maintain the patches: no process that trains loads it."""
