"""Rehearsals: scale a job for many NPUs down and run it on virtual NPUs, in a sandbox. `preparation` creates a small
model and data, `layout` and `rules` scale the settings, `training` runs the job, and `outcome` determines how the job
ended and what caused a failure."""
