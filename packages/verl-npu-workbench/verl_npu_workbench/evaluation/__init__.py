"""A model behind an OpenAI-style endpoint, judged by the training's own reward on the training's own data."""
