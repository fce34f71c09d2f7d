"""Tools that come with the package."""
