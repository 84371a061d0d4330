"""`verl-npu launch`: runs one job on several machines, using Ray."""
