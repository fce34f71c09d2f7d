"""Tools that come with the package; none yet in this version."""
