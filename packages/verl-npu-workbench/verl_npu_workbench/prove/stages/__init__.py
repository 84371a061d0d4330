"""What the stages do, each module one of them: `python -m verl_npu_workbench.prove.stages STAGE …` makes it here."""
