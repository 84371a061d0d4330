"""Diagnosis of a failed job from its logs: the cause, the fix, and the process in which the failure began."""
