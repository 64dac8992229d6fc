"""MTSQL-R1 (arXiv 2510.12831): propose, execute, verify, self-correct, finalize."""
