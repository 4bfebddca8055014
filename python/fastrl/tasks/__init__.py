"""Problems: presets, scores and reports."""
