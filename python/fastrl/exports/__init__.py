"""Exports: trained policies as files that need no PyTorch."""
