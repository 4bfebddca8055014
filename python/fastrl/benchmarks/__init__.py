"""Measurements of this machine beside other libraries: ``fastrl bench``. `results` has the files' format."""
