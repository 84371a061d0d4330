"""The stages of a proof, one module each. `python -m verl_npu_workbench.prove.stages STAGE …` runs one."""
