"""Agents that are ill, their examinations, and the scorecard."""
