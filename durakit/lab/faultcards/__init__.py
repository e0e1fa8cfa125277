"""Eight failures: the cards, what each decision about them leads to, and whole policies."""
