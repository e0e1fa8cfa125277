"""The laboratory: lessons, scenarios, plots and widgets. Nothing here is needed by the runtime.

What all lessons stand on lies here: ``lessons`` (the learner's copy), ``exercises``, ``frame``,
``answers``, ``laboratory``, ``worlds``, ``agent``, ``plots``, ``maps`` and ``view``. Each subject
has a folder: ``crash``, ``faultcards``, ``backoff``, ``budgets``, ``keys`` and ``clinic``.
``classroom`` counts over all lessons; ``lesson01`` to ``lesson09`` hold what one notebook needs.
"""
