"""`verl-npu launch`: runs one job over several machines, on Ray."""
