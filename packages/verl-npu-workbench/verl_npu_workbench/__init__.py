"""Commands for before, during, and after a training run, and the code that lets verl run on virtual NPUs.

This package is used neither by `import torch` nor by training on real NPUs, and the plugin does not depend on it:
`verl-npu` finds its commands through entry points.
"""
