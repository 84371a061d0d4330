"""Commands for before, during, and after a training, and the parts that verl needs to run on virtual NPUs.

Neither `import torch` nor a training on real NPUs uses this package, and the plugin does not depend on it: `verl-npu`
finds its commands through entry points.
"""
