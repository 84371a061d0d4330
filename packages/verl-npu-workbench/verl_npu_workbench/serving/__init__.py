"""vLLM's OpenAI-style server, started with what fits this machine, and watched until it answers."""
