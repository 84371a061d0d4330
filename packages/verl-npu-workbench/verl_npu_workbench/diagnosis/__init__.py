"""From the log of a failed job to the cause, what to do, and the process where it began."""
