"""Waiting: the law of jitter, one client against its deadline, and a crowd."""
