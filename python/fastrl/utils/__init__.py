"""Settings, files, processes, seeding, timers, errors: what every other package may use."""
