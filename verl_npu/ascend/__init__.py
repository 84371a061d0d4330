"""Facts about Ascend's platform: the variables that its software reads, their rules, and the limits of operators."""
