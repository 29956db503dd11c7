"""Five hospitals train one model; what the run tells of any patient is bounded."""
