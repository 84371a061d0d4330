"""The diagnosis of a failed job from its logs: the cause, the fix, and the process where it began."""
