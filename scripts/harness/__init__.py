"""What quickstart.sh and smoke.sh do: an environment, a job, and what came of it."""
