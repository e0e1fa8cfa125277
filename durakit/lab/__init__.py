"""The laboratory: lessons, scenarios, plots and widgets. Nothing here is needed by the runtime."""
