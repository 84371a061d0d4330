"""Fine-tuning without reinforcement learning: how its trainers divide their data, and what makes them need less."""
