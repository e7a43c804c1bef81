//! A probe over the simulated transport: hub and workers step in turn in one thread.
