"""What the numbers mean: exact match, execution match, dialogue totals. Needs no GPU and no torch."""
