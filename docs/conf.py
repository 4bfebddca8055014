"""Configuration of the documentation: sphinx-build -W --keep-going docs target/docs

Sphinx reads the docstrings of modules that were imported, so that the reference needs no second copy of what they say;
MyST lets pages be plain Markdown. CONTRIBUTING.md says why these were chosen.
"""

import fastrl

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
]
exclude_patterns = ["_*"]
default_role = "code"
highlight_language = "text"

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

html_theme = "pydata_sphinx_theme"
html_title = f"fastrl {release}"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "footer_start": ["copyright"],
    "footer_end": [],
}
