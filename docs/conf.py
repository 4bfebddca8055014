"""Configuration of the documentation: sphinx-build -W --keep-going docs target/docs

Sphinx reads the docstrings of modules that were imported, so that the reference needs no second copy of what they say;
MyST lets pages be plain Markdown. CONTRIBUTING.md says why these were chosen.
"""

import sys
from pathlib import Path

import fastrl

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "fastrl"
author = "the fastrl authors"
release = version = fastrl.__version__
copyright = f"2026, {author}"  # noqa: A001

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "fastrl_docstrings",
    "fastrl_results",
    "fastrl_presets",
    "fastrl_tables",
]
exclude_patterns = ["_*"]
default_role = "code"
# Quotes and dashes stay as they are: names of options begin with two dashes.
smartquotes = False

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("ArrayLike", "DTypeLike")}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Gymnasium's docstrings of `step` and `reset` are in its own documentation.
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "params_style")]
# Types such as `dtype` in signatures, which several classes have as an attribute.
suppress_warnings = ["ref.python"]

html_theme = "pydata_sphinx_theme"
html_title = f"fastrl {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["fastrl.css"]
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "footer_start": ["copyright"],
    "footer_end": [],
}
