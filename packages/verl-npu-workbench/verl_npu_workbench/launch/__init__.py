"""`verl-npu launch`: one job over several machines, on Ray."""
