"""What a person calls before, during and after a training, and what virtual NPUs need for verl.

Nothing here is part of `import torch` or of a training on real NPUs. The plugin does not know it: `verl-npu` finds the
commands of this package through entry points.
"""
