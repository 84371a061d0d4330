"""Two trainings compared, and judged by what the Ascend ecosystem asks of them."""
