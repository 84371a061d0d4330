"""Fine-tuning without reinforcement learning: how its trainers divide their data, and which settings need less memory."""
