"""Traffic: presets, curriculum, scores, films."""
