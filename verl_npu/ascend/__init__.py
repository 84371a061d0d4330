"""Facts about Ascend's platform: the variables that its software reads, and the rules that hold for them."""
