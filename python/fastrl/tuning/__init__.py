"""Search for hyper-parameters: ``fastrl tune`` and `fastrl.tune`."""
