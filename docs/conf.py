from pathlib import Path

project = "trio_grpc"
author = copyright = "The trio_grpc contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "trio_grpc"

# The pictures of performance.md are made by `make plots`. Before its first run the page is still worth building.
if not Path(__file__).with_name("performance").exists():
    suppress_warnings = ["image.not_readable"]

# Names in the docstrings link to what they name.
default_role = "py:obj"
# Links to headings of the same page.
myst_heading_anchors = 3

# An "Attributes:" section beside a property of that name would otherwise describe it twice.
napoleon_use_ivar = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
