"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

fleet = Feature("fleet", "Every process gets the user's variables, and all are compared before training starts.")
