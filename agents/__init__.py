"""How a question becomes SQL; one folder per system."""
