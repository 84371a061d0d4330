"""What a person calls, above the plugin: nothing here is part of `import torch` or of a training."""
